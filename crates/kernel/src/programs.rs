//! Whether the kernel takes weir's programs: each is loaded as `weir run` loads it, and attached nowhere. A kernel may have
//! all that a program is built on, and its verifier refuse the program all the same.

use crate::error::{Error, Result};
use crate::filters;
use crate::guard::Guard;
use crate::probe::{Mechanism, basics};
use crate::queue;
use crate::shape::{Classifier, qdisc};
use crate::splice::Splice;
use crate::timewait::TimeWait;

/// What they are built on is in Linux from 6.6 on; experiments/kernels has those whose verifier took them.
const FROM_6_6: &str = "6.6; tried on 6.8, 6.12, 6.18, 7.0 and 7.3";

/// One as good as any other: the program is the same.
const CLASSIFIER: Classifier = Classifier {
    high: 0x1_0001,
    low: 0x1_0002,
    demoted: 0x1_0003,
    fin: false,
    limit: None,
};

/// Tries each mechanism on this machine, and each program of weir. Needs root; attaches nothing.
pub fn probe_all() -> Vec<Mechanism> {
    let mut all = basics();
    all.extend(programs());
    all
}

fn programs() -> Vec<Mechanism> {
    let guard = Guard::load();
    let beside = |load: fn(&Guard) -> Result<()>| match &guard {
        Ok(guard) => state(load(guard)),
        Err(_) => Err("guard-tc, whose maps it shares, is not loaded".into()),
    };
    vec![
        Mechanism {
            name: "guard-tc",
            purpose: "the guard's programs: weir protect and weir run",
            min_kernel: FROM_6_6,
            state: guard.as_ref().map(|_| ()).map_err(Error::to_string),
            without: "nothing works",
            needed: true,
        },
        Mechanism {
            name: "guard-tc-bare",
            purpose: "the guard on devices without a link header (tun, WireGuard)",
            min_kernel: FROM_6_6,
            state: beside(|guard| guard.load_bare()),
            without: "such devices are not guarded",
            needed: false,
        },
        Mechanism {
            name: "guard-xdp",
            purpose: "front = xdp: the guard's program for drivers",
            min_kernel: FROM_6_6,
            state: beside(|guard| guard.xdp().map(drop)),
            without: "front = xdp does not work; refusals are made at tc ingress",
            needed: false,
        },
        Mechanism {
            name: "queue",
            purpose: "queue = priority: the programs that park connections",
            min_kernel: "6.6.140, 6.12.86, 6.18.27 or 7.0.4; tried on 6.8 of Ubuntu, 6.12, 6.18, 7.0 and 7.3",
            state: beside(|guard| queue::load_skel(&guard.shared_maps()?).map(drop)),
            without: "queue = priority stays fifo",
            needed: false,
        },
        Mechanism {
            name: "netfilter-hooks",
            purpose: "telling what filters packets behind weir, by the kernel's lists of hooks",
            min_kernel: "5.14; tried on 6.8, 6.12, 6.18, 7.0 and 7.3",
            state: state(filters::load()),
            without: "conntrack is noticed once it knows a connection, BPF programs of netfilter are not",
            needed: false,
        },
        Mechanism {
            name: "watch",
            purpose: "telling that connections come whose SYNs do not reach weir, and whose program hides them",
            min_kernel: "5.9; tried on 6.8, 6.12, 6.18, 7.0 and 7.3",
            state: state(crate::watch::try_load()),
            without: "a listener counts as in force while weir is attached",
            needed: false,
        },
        Mechanism {
            name: "residence",
            purpose: "residence: requests that a server has and has not answered",
            min_kernel: "5.9; tried on 6.8, 6.12, 6.18, 7.0 and 7.3",
            state: state(crate::residence::try_load()),
            without: "weir does not see queues inside servers",
            needed: false,
        },
        Mechanism {
            name: "quic",
            purpose: "[[quic]]: new connections of QUIC servers",
            min_kernel: FROM_6_6,
            state: state(crate::quic::Quic::load().and_then(|loaded| loaded.load_bare())),
            without: "QUIC servers are not guarded",
            needed: false,
        },
        Mechanism {
            name: "timewait",
            purpose: "timewait of a destination or a listener: which end is in TIME-WAIT",
            min_kernel: "6.6, and 6.12 to negotiate for servers that listen already; tried on 6.8, 6.12, 6.18, 7.0 and 7.3",
            state: state(TimeWait::load().and_then(|loaded| loaded.load_bare())),
            without: "the end that closes first is in TIME-WAIT",
            needed: false,
        },
        Mechanism {
            name: "shape",
            purpose: "[[shape]] and weir shape: the classifier of control segments",
            min_kernel: FROM_6_6,
            state: state(CLASSIFIER.load()),
            without: "[[shape]] and weir shape do not work with qdiscs of the kernel",
            needed: false,
        },
        Mechanism {
            name: "bpf-qdisc",
            purpose: "weir shape --backend bpf: a queueing discipline with its own shaper",
            min_kernel: "6.16 with CONFIG_NET_SCH_BPF",
            state: state(qdisc::try_load()),
            without: "weir shape uses qdiscs of the kernel (tc)",
            needed: false,
        },
        Mechanism {
            name: "sockmap",
            purpose: "engine = sockmap: short messages of the proxy's tunnels inside the kernel",
            min_kernel: "6.15",
            state: state(Splice::load()),
            without: "the proxy's other engines work, and need nothing",
            needed: false,
        },
    ]
}

fn state<T>(loaded: Result<T>) -> std::result::Result<(), String> {
    loaded.map(drop).map_err(|error| error.to_string())
}
