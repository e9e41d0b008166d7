//! A queueing discipline in BPF (bpf/qdisc.bpf.c): SPA with a shaper of its own, as the root qdisc of one interface.
//!
//! [`register`] makes the kernel know a qdisc of a kind of its own, `weir_` and a random number. Whoever speaks rtnetlink
//! then puts it on an interface by that name. The kernel keeps it without a process, and without a pin in bpffs, until
//! [`unregister`].

pub(crate) mod skel;

use std::mem::MaybeUninit;
use std::time::Duration;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use weir_core::abi;
use weir_core::aqm::{ByteRate, CodelParams, FlowParams, LimitParams, SpaParams};

use crate::error::{Error, Result, of_libbpf};
use crate::object::{self, Plain, open_in, plain};
use crate::probe::kernel_function;
use crate::random::random;
use skel::{QdiscSkelBuilder, types};

/// What the kind of every such qdisc begins with.
pub const KIND: &str = "weir_";
/// A wake-up that is late by so much costs the link no rate, ns; as HTB's burst in `weir shape`.
const LAG_NS: u64 = 2_000_000;
/// A process that has registered a qdisc puts it on an interface within this time, by far.
const ABOUT_TO_USE: Duration = Duration::from_millis(100);
/// What is done at the start, in errors.
const QDISC: &str = "load the qdisc";
/// The map that has the state of a qdisc.
const STATE: &str = "weir_spa_state";

plain!(types::spa, types::spa_params);

/// The queue of what is no control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Low {
    /// One queue, of so many packets.
    One(CodelParams, u32),
    /// A queue for each flow.
    Flows(FlowParams),
}

/// A qdisc that is to be. Marks of CoDel are ignored: it drops.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Rate of the link, bytes/s; 1000..=12.5 billion.
    pub rate_bytes_per_s: u64,
    /// What it is called in [`Instance`]; 15 bytes at most.
    pub discipline: &'static str,
    /// The high queue and the demoted one.
    pub spa: SpaParams,
    /// The low queue.
    pub low: Low,
}

/// Packets and bytes of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets that left.
    pub sent_packets: u64,
    /// Bytes of them, with link headers.
    pub sent_bytes: u64,
    /// Packets that were dropped.
    pub dropped_packets: u64,
    /// Packets that wait.
    pub waiting_packets: u64,
    /// Bytes of them.
    pub waiting_bytes: u64,
}

/// A qdisc that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its kind, as `tc qdisc` shows it.
    pub kind: String,
    /// As in [`Spec`].
    pub discipline: String,
    /// As in [`Spec`].
    pub rate_bytes_per_s: u64,
    /// Whether it is on an interface, of whichever network namespace.
    pub in_use: bool,
    /// The high queue, the low one, the demoted one.
    pub queues: [Counts; abi::SPA_QUEUES as usize],
    /// Map that has the registration.
    ops_id: u32,
}

/// Whether the kernel has such qdiscs.
///
/// # Errors
/// [`Error::Unsupported`] says what is missing.
pub fn supported() -> Result<()> {
    kernel_function("bpf_qdisc_bstats_update").map_err(|cause| Error::Unsupported {
        what: "a qdisc in BPF".into(),
        cause,
        hint: "it needs Linux 6.16 with CONFIG_NET_SCH_BPF; `--backend tc` needs neither".into(),
    })
}

/// Gives the kernel the programs, and lets them go again: no qdisc is registered.
///
/// # Errors
/// As of [`register`].
pub(crate) fn try_load() -> Result<()> {
    supported()?;
    let mut memory = MaybeUninit::uninit();
    let open = open_in::<QdiscSkelBuilder>(&mut memory).map_err(of_libbpf(QDISC))?;
    object::load(open, QDISC).map(drop)
}

/// Makes the kernel know the qdisc. Its kind is returned.
///
/// # Errors
/// [`Error::Unsupported`] where the kernel has no qdiscs in BPF, [`Error::Denied`] without root, [`Error::Failed`]
/// where the kernel does not take it.
pub fn register(spec: &Spec) -> Result<String> {
    supported()?;
    let failed = || of_libbpf(QDISC);
    let mut memory = MaybeUninit::uninit();
    let mut open = open_in::<QdiscSkelBuilder>(&mut memory).map_err(failed())?;
    let random = random()?;
    let mut state = types::spa::zero();
    state.params = params(spec, random as u32);
    let kind = format!("{KIND}{:08x}", (random >> 32) as u32);
    put_name(&mut state.kind, &kind);
    put_name(&mut state.discipline, spec.discipline);
    open.struct_ops.weir_spa_mut().id = state.kind;
    let sizes = [
        (&mut open.maps.weir_spa_places, state.params.places),
        (&mut open.maps.weir_spa_flows, state.params.flows.max(1)),
    ];
    for (map, size) in sizes {
        map.set_max_entries(size).map_err(failed())?;
    }
    let mut loaded = object::load(open, QDISC)?;
    state.ops_id = loaded.maps.weir_spa.info().map_err(failed())?.info.id;
    let written =
        loaded
            .maps
            .weir_spa_state
            .update(&0u32.to_ne_bytes(), state.bytes(), MapFlags::ANY);
    written.map_err(failed())?;
    let registered = loaded.maps.weir_spa.attach_struct_ops();
    let mut link = registered.map_err(of_libbpf("register the qdisc"))?;
    // The kernel has it now, and keeps what it needs.
    link.disconnect();
    Ok(kind)
}

/// Makes the kernel forget a qdisc. One that is on an interface works on there until it is taken off. `false`: there is
/// none of this kind.
///
/// # Errors
/// The kernel's.
pub fn unregister(kind: &str) -> Result<bool> {
    let all = instances()?;
    let mut of_kind = all.iter().filter(|instance| instance.kind == kind);
    of_kind.next().map_or(Ok(false), forget)
}

/// Makes the kernel forget the qdiscs that are on no interface any more, because it is gone or was given another.
///
/// A qdisc that another process has registered, and is about to put on an interface, is on none either for the time of one request
/// to the kernel. So where there are any it looks again after [`ABOUT_TO_USE`], and forgets those that are still on none. A process that
/// takes longer than that cannot put its qdisc there, says so, and leaves the interface as it was; it may try again.
///
/// # Errors
/// The kernel's, when it lists them. One that cannot be forgotten now is tried again with the next call.
pub fn unregister_unused() -> Result<()> {
    let before = instances()?;
    if before.iter().all(|instance| instance.in_use) {
        return Ok(());
    }
    std::thread::sleep(ABOUT_TO_USE);
    for instance in abandoned(&before, &instances()?) {
        let _ = forget(instance);
    }
    Ok(())
}

/// Those that were on no interface at both looks.
fn abandoned<'a>(
    before: &'a [Instance],
    now: &'a [Instance],
) -> impl Iterator<Item = &'a Instance> {
    let was_unused = |kind: &str| before.iter().any(|one| one.kind == kind && !one.in_use);
    now.iter()
        .filter(move |one| !one.in_use && was_unused(&one.kind))
}

/// `false`: it is forgotten already, and its maps are about to go.
fn forget(instance: &Instance) -> Result<bool> {
    let deleted = MapHandle::from_map_id(instance.ops_id)
        // Deleting the only value unregisters.
        .and_then(|registration| registration.delete(&0u32.to_ne_bytes()));
    match deleted {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(false),
        Err(error) => {
            let what = format!("unregister the qdisc {}", instance.kind);
            Err(of_libbpf(what)(error))
        }
    }
}

/// The qdiscs that the kernel knows, of all network namespaces.
///
/// # Errors
/// The kernel's.
pub fn instances() -> Result<Vec<Instance>> {
    let maps = MapInfoIter::default();
    let maps = maps.filter(|map| map.name == STATE && map.ty == MapType::Array);
    // A map that went away in between is of a qdisc that did.
    let read = |id| {
        let map = MapHandle::from_map_id(id).ok()?;
        let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        types::spa::read(&bytes).map(|state| instance(&state))
    };
    Ok(maps.filter_map(|map| read(map.id)).collect())
}

pub(crate) fn instance(state: &types::spa) -> Instance {
    let waiting = state
        .queue
        .map(|queue| [queue.list.packets, queue.list.bytes]);
    let in_queues = |which: usize| waiting.iter().map(|queue| queue[which]).sum::<u32>();
    // What flow queues hold is what is left of all.
    let in_flows = [
        state.packets.wrapping_sub(in_queues(0)),
        state.bytes.wrapping_sub(in_queues(1)),
    ];
    let queue = |at: usize| {
        let counts = &state.counts[at];
        let is_low = at == abi::SPA_LOW as usize;
        let [packets, bytes] = [0, 1].map(|which| {
            let more = if is_low { in_flows[which] } else { 0 };
            u64::from(waiting[at][which].wrapping_add(more))
        });
        Counts {
            sent_packets: counts.sent_packets,
            sent_bytes: counts.sent_bytes,
            dropped_packets: counts.dropped_packets,
            waiting_packets: packets,
            waiting_bytes: bytes,
        }
    };
    Instance {
        kind: name(&state.kind),
        discipline: name(&state.discipline),
        rate_bytes_per_s: state.params.rate_bytes_per_s,
        in_use: state.owner != 0,
        queues: std::array::from_fn(queue),
        ops_id: state.ops_id,
    }
}

/// `char` of BPF is signed, whatever it is for programs of this architecture.
fn put_name<const N: usize>(to: &mut [i8; N], name: &str) {
    // One NUL stays.
    for (to, byte) in to[..N - 1].iter_mut().zip(name.bytes()) {
        *to = byte as i8;
    }
}

fn name(bytes: &[i8]) -> String {
    let bytes = bytes.iter().map(|byte| *byte as u8);
    String::from_utf8_lossy(&bytes.take_while(|byte| *byte != 0).collect::<Vec<_>>()).into_owned()
}

/// As the program has them.
pub(crate) fn params(spec: &Spec, seed: u32) -> types::spa_params {
    let Spec { spa, low, .. } = spec;
    let rate = spec.rate_bytes_per_s.max(1);
    let (low, low_packets, flows, turns) = match low {
        Low::One(codel, packets) => (codel, *packets, 0, [0; 4]),
        Low::Flows(flows) => (
            &flows.codel,
            flows.limit_packets,
            flows.flows,
            [
                flows.quantum_bytes,
                flows.fresh_bytes,
                flows.crowd_packets,
                flows.crowd_bytes,
            ],
        ),
    };
    let room = [spa.limit_packets, low_packets, spa.demoted_packets];
    types::spa_params {
        limit: limit(spa, seed),
        high: codel(&spa.high),
        low: codel(low),
        rate_bytes_per_s: rate,
        ns_per_mib: (1_000_000_000 << 20) / rate,
        lag_ns: LAG_NS,
        room,
        // Flow queues hold one too many for a moment.
        places: room.iter().sum::<u32>() + 1,
        flows,
        quantum_bytes: turns[0],
        fresh_bytes: turns[1],
        crowd_packets: turns[2],
        crowd_bytes: turns[3],
        demoted_log: spa.demoted_log,
    }
}

fn codel(params: &CodelParams) -> types::codel_params {
    types::codel_params {
        target_ns: params.target_ns,
        interval_ns: params.interval_ns,
        mtu_bytes: params.mtu_bytes,
        reserved: 0,
    }
}

fn limit(spa: &SpaParams, seed: u32) -> types::shape_params {
    let rate = |rate: ByteRate| types::byte_rate {
        ns_per_kib: rate.ns_per_kib,
        tolerance_ns: rate.tolerance_ns,
    };
    let params = spa.limit.unwrap_or_else(|| LimitParams::for_rate(1));
    types::shape_params {
        source: rate(params.source),
        all: rate(params.all),
        high: 0,
        low: 0,
        demoted: 0,
        seed,
        fin: spa.fin.into(),
        limited: spa.limit.is_some().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(kind: &str, in_use: bool) -> Instance {
        let mut state = types::spa::zero();
        put_name(&mut state.kind, kind);
        state.owner = u64::from(in_use);
        instance(&state)
    }

    #[test]
    fn what_another_process_is_about_to_use_is_not_abandoned() {
        let before = [
            known("weir_left", false),
            known("weir_its", false),
            known("weir_used", true),
        ];
        let now = [
            known("weir_left", false),
            known("weir_its", true),
            known("weir_used", false),
            known("weir_new", false),
        ];
        let kinds: Vec<&str> = abandoned(&before, &now).map(|one| &*one.kind).collect();
        assert_eq!(kinds, ["weir_left"]);
    }
}
