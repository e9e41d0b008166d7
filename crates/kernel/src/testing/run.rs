//! Test runs of the programs on made-up packets (BPF_PROG_TEST_RUN), for tests and benchmarks.
//!
//! A run judges a packet as if it had come in on the loopback device of the calling thread's
//! network namespace (its address is 00:00:00:00:00:00); nothing reaches the stack.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, Skel};
use weir_core::class::Class;
use weir_core::listener::Listener;
use weir_core::timewait::Destination;

use super::skel::{GuardSkel as BenchSkel, GuardSkelBuilder as BenchSkelBuilder};
use crate::error::{Error, Result, of_errno, of_libbpf};
use crate::guard::{Guard, Limits};
use crate::namespace::NamespacePath;
use crate::object::{Share, open, open_in};
use crate::timewait::{TimeWait, TimeWaitFigures};

/// Room for an answer that is longer than the packet.
const OUT_LEN: usize = 4096;

/// What a program made of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// tc: -1 pass, 2 drop, 7 redirect. XDP: 1 drop, 2 pass, 3 transmit.
    pub action: i32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
}

impl Guard {
    /// Loads a guard that takes the kernel's ticks for ticks of so many ns.
    pub fn load_with_tick(tick_ns: u32) -> Result<Guard> {
        Guard::with_tick(tick_ns, Limits::default())
    }

    /// Runs the tc program once on a frame of at least 14 bytes.
    pub fn judge_tc(&self, frame: &[u8]) -> Result<Judged> {
        judge(self.tc(), frame)
    }

    /// The same of a frame that a device has summed up (CHECKSUM_COMPLETE). Fails with EBADMSG if that sum is not the
    /// frame's any more afterwards. `None`: a kernel before Linux 6.17.
    pub fn judge_summed(&self, frame: &[u8]) -> Result<Option<Judged>> {
        judge_summed(self.tc(), frame)
    }

    /// Runs the tc program so many times on a frame that it leaves as it is (it passes or is dropped).
    pub fn judge_tc_repeatedly(&self, frame: &[u8], times: u32) -> Result<()> {
        test_run(self.tc(), frame, &mut [], times).map(|_| ())
    }

    /// The same on each CPU at once.
    pub fn judge_tc_on_all_cpus(&self, frame: &[u8], times: u32) -> Result<()> {
        let program = self.tc();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let run = || test_run(program, frame, &mut [], times).map(|_| ());
            let runs: Vec<_> = (0..cpus).map(|_| scope.spawn(run)).collect();
            runs.into_iter()
                .try_for_each(|run| run.join().expect("it does not panic"))
        })
    }

    /// Runs the XDP program once on a frame of at least 14 bytes.
    pub fn judge_xdp(&self, frame: &[u8]) -> Result<Judged> {
        judge(self.xdp()?, frame)
    }

    /// How often the kernel's tables were walked for listening sockets.
    pub fn walks(&self) -> u64 {
        self.listeners.walks()
    }
}

pub(super) fn judge(program: BorrowedFd<'_>, frame: &[u8]) -> Result<Judged> {
    let mut out = vec![0u8; OUT_LEN];
    let (action, len) = test_run(program, frame, &mut out, 1)?;
    out.truncate(len);
    Ok(Judged { action, frame: out })
}

fn judge_summed(program: BorrowedFd<'_>, frame: &[u8]) -> Result<Option<Judged>> {
    let mut out = vec![0u8; OUT_LEN];
    let flags = libbpf_sys::BPF_F_TEST_SKB_CHECKSUM_COMPLETE;
    match test_run_with(program, frame, &mut out, 1, flags) {
        Ok((action, len)) => {
            out.truncate(len);
            Ok(Some(Judged { action, frame: out }))
        }
        Err(error) if error.to_string().contains("Invalid argument") => Ok(None),
        Err(error) => Err(error),
    }
}

/// The last run's action, and how long the frame is then.
fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    out: &mut [u8],
    repeat: u32,
) -> Result<(i32, usize)> {
    test_run_with(program, frame, out, repeat, 0)
}

fn test_run_with(
    program: BorrowedFd<'_>,
    frame: &[u8],
    out: &mut [u8],
    repeat: u32,
    flags: u32,
) -> Result<(i32, usize)> {
    let mut run = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: match out {
            [] => std::ptr::null_mut(),
            _ => out.as_mut_ptr().cast(),
        },
        data_size_out: out.len() as u32,
        repeat: repeat as i32,
        flags,
        ..Default::default()
    };
    // SAFETY: the lengths are those of the buffers, which outlive the call.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut run) } {
        0 => Ok((run.retval as i32, run.data_size_out as usize)),
        _ => Err(of_errno("run a program on a test packet")),
    }
}

/// The programs of timewait, for test runs.
pub struct TimeWaitBench(TimeWait);

impl TimeWaitBench {
    /// Loads them with these destinations in force, attached nowhere.
    pub fn load(destinations: &[Destination]) -> Result<TimeWaitBench> {
        let mut timewait = TimeWait::load()?;
        timewait.enter_unattached(destinations, &[])?;
        Ok(TimeWaitBench(timewait))
    }

    /// Runs the tc program once on a frame of at least 14 bytes that a device has summed up (CHECKSUM_COMPLETE). Fails with
    /// EBADMSG if that sum is not the frame's any more afterwards. `None`: a kernel before Linux 6.17.
    pub fn judge_summed(&self, frame: &[u8]) -> Result<Option<Judged>> {
        let [_, _, tc] = self.0.programs();
        judge_summed(tc, frame)
    }

    /// The figures of the destination with this name.
    pub fn figures(&self, name: &str) -> Result<TimeWaitFigures> {
        self.0.figures(name)
    }

    /// Has so many connections wait for a later segment.
    pub fn set_awaited(&mut self, connections: u32) {
        self.0.set_awaited(connections);
    }

    /// Mean time of the tc program on a frame of at least 14 bytes that it leaves as it is, and its action.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<(Duration, i32)> {
        let [_, _, tc] = self.0.programs();
        let mut run = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: repeat as i32,
            ..Default::default()
        };
        // SAFETY: the length is that of the frame, which outlives the call.
        match unsafe { libbpf_sys::bpf_prog_test_run_opts(tc.as_raw_fd(), &mut run) } {
            0 => Ok((Duration::from_nanos(run.duration.into()), run.retval as i32)),
            _ => Err(of_errno("run a program on a test packet")),
        }
    }
}

/// The class that the loaded classifier of `weir shape` sends a frame of at least 14 bytes to.
pub fn classify(program: BorrowedFd<'_>, frame: &[u8]) -> Result<u32> {
    test_run(program, frame, &mut [], 1).map(|(class, _)| class as u32)
}

/// What the kernel's verifier had to do for each of weir's programs: instructions that it followed.
/// It gives up at a million. Loads all of them for it, the guard's also as they are where other namespaces are guarded.
pub fn verified_instructions() -> Result<BTreeMap<String, u32>> {
    let mut of = BTreeMap::new();
    let mut add = |object: &libbpf_rs::Object, variant: &str| -> Result<()> {
        for program in object.progs() {
            let name = program.name().to_string_lossy();
            of.insert(format!("{name}{variant}"), verified(program.as_fd())?);
        }
        Ok(())
    };
    let failed = |e| of_libbpf("load all programs")(e);
    macro_rules! load {
        ($builder:ty) => {
            let mut storage = MaybeUninit::uninit();
            let open = open_in::<$builder>(&mut storage).map_err(failed)?;
            add(open.load().map_err(failed)?.object(), "")?;
        };
    }
    load!(crate::discover::skel::DiscoverSkelBuilder);
    load!(crate::filters::skel::FiltersSkelBuilder);
    load!(crate::guard::skel::GuardSkelBuilder);
    let mut storage = MaybeUninit::uninit();
    let mut open = open_in::<crate::guard::skel::GuardSkelBuilder>(&mut storage).map_err(failed)?;
    let constants = open.maps.rodata_data.as_deref_mut();
    constants.expect("the guard has constants").guards_others = 1;
    add(open.load().map_err(failed)?.object(), " (namespaces)")?;
    load!(crate::queue::skel::QueueSkelBuilder);
    load!(crate::quic::skel::QuicSkelBuilder);
    load!(crate::residence::skel::ResidenceSkelBuilder);
    load!(crate::shape::skel::ShapeSkelBuilder);
    load!(crate::splice::skel::SpliceSkelBuilder);
    load!(crate::timewait::skel::TimewaitSkelBuilder);
    load!(crate::watch::skel::WatchSkelBuilder);
    Ok(of)
}

/// The same on a kernel with this BTF: a file that numbers the types as the running kernel does, but may lack fields.
pub fn verified_instructions_on(btf: &Path) -> Result<BTreeMap<String, u32>> {
    crate::object::btf::within(btf, verified_instructions)
}

fn verified(program: BorrowedFd<'_>) -> Result<u32> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: info is writable and as long as said.
    let failed =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut len) };
    match failed {
        0 => Ok(info.verified_insns),
        _ => Err(of_errno("ask for a program")),
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A program that passes every packet.
    Empty,
    /// Writing the packet anew, which the guard's figures contain too.
    Rewrite,
    /// Writing the packet anew, then only the kernel's socket lookup (tc).
    Lookup,
    /// Writing the packet anew, then the guard.
    Guard,
}

/// Where it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// tc ingress.
    Tc,
    /// XDP.
    Xdp,
}

/// The guard with a frame around it that restores the packet before each repetition.
pub struct Bench {
    skel: BenchSkel<'static>,
    /// Its maps and constants are the benchmark's too.
    _guard: Guard,
}

impl Bench {
    /// Loads a guard with a policy for these listeners and classes in force, and the benchmark's programs on
    /// the same maps. The classes may name no listener.
    pub fn load(listeners: &[Listener], classes: &[Class]) -> Result<Bench> {
        let mut guard = Guard::load()?;
        guard.apply(listeners, classes)?;
        Bench::around(guard)
    }

    /// The same with these listeners in weir's own network namespace and in another one.
    pub fn load_with(at: &NamespacePath, listeners: &[Listener]) -> Result<Bench> {
        let mut guard = Guard::load_for(Limits {
            namespaces: 300,
            listeners: 1000,
            ..Limits::default()
        })?;
        guard.apply(listeners, &[])?;
        guard.apply_in(at, listeners, true)?;
        Bench::around(guard)
    }

    fn around(guard: Guard) -> Result<Bench> {
        let failed = |e| of_libbpf("load the benchmark's BPF programs")(e);
        let mut open = open::<BenchSkelBuilder>().map_err(failed)?;
        open.progs.guard_tc.set_autoload(false);
        open.progs.guard_xdp.set_autoload(false);
        open.progs.list_listeners.set_autoload(false);
        open.progs.look_again.set_autoload(false);
        guard
            .shared_maps()?
            .give_to(open.open_object_mut(), Share::Constants)
            .map_err(failed)?;
        let skel = open.load().map_err(failed)?;
        Ok(Bench {
            skel,
            _guard: guard,
        })
    }

    /// Kernel addresses of tables whose entries are cache lines, and of what has a line of its own; by their names.
    pub fn addresses(&mut self) -> Result<[(&'static str, u64); 6]> {
        let program = &self.skel.progs.bench_addresses;
        let run = program.test_run(ProgramInput::default());
        run.map_err(of_libbpf("run a program that finds addresses"))?;
        let own = self.skel.maps.bss_bench_data.as_deref();
        let at = own.expect("globals are mapped").address_of;
        let names = [
            "queues",
            "taken",
            "sources",
            "policies",
            "policies[1]",
            "shared_samples",
        ];
        Ok(std::array::from_fn(|i| (names[i], at[i])))
    }

    /// Mean time of one repetition, and the last one's action. The frame has 54 to 74 bytes.
    pub fn run(
        &mut self,
        stage: Stage,
        subject: Subject,
        frame: &[u8],
        repeat: u32,
    ) -> Result<(Duration, i32)> {
        if !(54..=74).contains(&frame.len()) {
            let cause = format!("it has {} bytes, not 54 to 74", frame.len());
            return Err(Error::Failed {
                what: "measure with this frame".into(),
                cause,
            });
        }
        let own = self.skel.maps.bss_bench_data.as_deref_mut();
        let own = own.expect("globals are mapped");
        own.frame[..frame.len()].copy_from_slice(frame);
        own.frame_len = frame.len() as u32;
        let p = &self.skel.progs;
        let program = match (stage, subject) {
            (Stage::Tc, Subject::Empty) => &p.bench_empty,
            (Stage::Tc, Subject::Rewrite) => &p.bench_rewrite,
            (Stage::Tc, Subject::Guard) => &p.bench_guard,
            (_, Subject::Lookup) => &p.bench_lookup,
            (Stage::Xdp, Subject::Empty) => &p.bench_xdp_empty,
            (Stage::Xdp, Subject::Rewrite) => &p.bench_xdp_rewrite,
            (Stage::Xdp, Subject::Guard) => &p.bench_xdp_guard,
        };
        let input = ProgramInput {
            data_in: Some(frame),
            repeat,
            ..Default::default()
        };
        let output = program
            .test_run(input)
            .map_err(of_libbpf("run a benchmark"))?;
        Ok((output.duration, output.return_value as i32))
    }
}
