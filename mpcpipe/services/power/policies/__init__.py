"""One file a policy, all behind `mpcpipe.services.power.policies.base.Policy`."""
