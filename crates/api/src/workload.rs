//! The servers of a listener in other network namespaces.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A container, a unit, a pod or a network namespace in which a listener is guarded (`where`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Workload {
    /// The workload's name: that of the container, the unit, the network namespace or the pod (NAMESPACE/NAME)
    ///
    /// The first 12 digits of the id of a container whose name weir cannot read; net-COOKIE of a namespace without a name.
    pub name: String,
    /// What has made the container: docker, podman, containerd, cri-o or lxc; null outside of containers
    #[serde(default)]
    pub runtime: Option<String>,
    /// The id of the container; null outside of containers
    #[serde(default)]
    pub container_id: Option<String>,
    /// The systemd unit of the server; null if it is in none
    #[serde(default)]
    pub unit: Option<String>,
    /// The name that `ip netns` has for the network namespace; null if it has none
    #[serde(default)]
    pub netns: Option<String>,
    /// The pod of Kubernetes: NAMESPACE/NAME; null outside of pods, and of one whose name weir cannot read
    #[serde(default)]
    pub pod: Option<String>,
    /// The cookie of the network namespace (SO_NETNS_COOKIE), which no other one gets until the machine stops
    pub netns_cookie: u64,
    /// Whether weir guards the listener there
    pub in_force: bool,
    /// Why weir does not guard the listener there; absent while it does
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_force_because: Option<String>,
    /// Whether a socket listens there at the moment
    pub listening: bool,
    /// Connections that wait for accept() there
    pub queue_length: u32,
    /// Places in the listen queues there
    pub queue_limit: u32,
    /// Handshakes under way there
    pub half_open: u32,
    /// The estimated wait for accept() there, in microseconds; null while not known
    pub wait_us: Option<u64>,
    /// Connections that have come there since weir looks, each counted once; null unless mode = observe
    #[serde(default)]
    pub offered: Option<u64>,
    /// Of those, connections that enforcing would have refused; null unless mode = observe
    #[serde(default)]
    pub would_refuse: Option<u64>,
    /// The policy in force there, where the configured one is not possible; null if there is none
    #[serde(default)]
    pub fallback: Option<String>,
    /// Why the policy in force there is not the configured one
    #[serde(default)]
    pub fallback_because: Option<String>,
    /// The interfaces of the network namespace with the guard on them
    #[serde(default)]
    pub attached_to: Vec<String>,
    /// Verdicts or events there, each by its name, since the listener is guarded there
    pub counters: BTreeMap<String, u64>,
}
