//! All that an experiment with load runs on: the bed, the origin, the contenders side by side, and the meter of the
//! proxy's core.
//!
//! All contenders run at the same time, each on its own ports, so that a round can go through them without a start
//! in between; only one of them has work at a time. What the proxy's core spends is everything that is not idle time
//! ([`crate::idle`]), less what it spends without any load: with moderated interrupts ([`super::bed`]) that is the
//! timer of the moderation, a constant share of the time, whose programming costs a virtual machine much.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::bed::{Bed, Link, ORIGIN, Receive, Received};
use super::clients::{self, Load, Rest, Served, Span};
use super::contender::{Capacity, Contender, ProxyMode, Running, Setting};
use super::origin::Origin;
use super::sent::Sent;
use super::wire::Wire;
use crate::bed::Layout;
use crate::cpu::Spare;
use crate::error::{Error, Result};
use crate::idle::IdleMeter;

const ORIGIN_PORT: u16 = 8080;
const UNLOADED_WINDOW: Duration = Duration::from_millis(500);
/// Share of the proxy's CPU that may be busy without any load: a quiet machine has 0.07 at most.
const MAX_UNLOADED: f64 = 0.2;
/// The idle meter and /proc/stat, over a whole run, may differ by this share of the CPU.
const MAX_DISAGREEMENT: f64 = 0.05;

/// When no packet has come to the proxy for so long, nothing of a load is on its way any more.
const QUIET: Duration = Duration::from_millis(20);
/// The link carries all that can wait in its queue in less.
const LONGEST_REST: Duration = Duration::from_secs(2);

/// Where the origin is, for who names it.
pub fn origin_address() -> SocketAddr {
    (ORIGIN, ORIGIN_PORT).into()
}

/// What a rig is built for.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Proxies to run.
    pub contenders: &'a [Contender],
    /// What they are to do.
    pub modes: &'a [ProxyMode],
    /// What connects the proxy to the others.
    pub link: Link,
    /// When a device hands on the packets that it joins.
    pub receive: Receive,
    /// Rate of the link to the origin, in Mbit/s: see [`Bed::build`].
    pub link_mbit: u32,
    /// Whether the lab carries what the proxy sends to its clients ([`Wire`]), which takes their receive work off
    /// the proxy's core.
    pub wire: bool,
    /// The weir program; `None`: beside this program, else from PATH.
    pub weir: Option<&'a Path>,
    /// Memory for replies that weir keeps.
    pub cache: Option<&'a str>,
}

/// Everything that runs during an experiment.
#[derive(Debug)]
pub struct Rig {
    /// The namespaces.
    pub bed: Bed,
    /// Those of the plan, in its order.
    pub contenders: Vec<Running>,
    /// Share of the proxy's CPU that is busy without any load.
    pub unloaded: f64,
    wire: Option<Wire>,
    origin: Origin,
    /// Whether clients and origin sleep when they have nothing to do.
    sleeps: bool,
    /// Of the proxy's CPU.
    meter: IdleMeter,
    begun: (Sample, Spare),
}

/// What was seen inside a window.
#[derive(Debug)]
pub struct Seen {
    /// What came of each load, in their order.
    pub served: Vec<Served>,
    /// Length of the window.
    pub span: Duration,
    /// Time that the proxy's core was busy with the load.
    pub busy: Duration,
    /// Of it, about, the time of the proxy's processes, with the softirqs that ran in their place: what they used from
    /// the warm-up on, in proportion. Who else is on the core has no part in it.
    pub processes: Duration,
    /// Of that, about, the time in the proxy's own code.
    pub user: Duration,
    /// Time that clients and origin were busy.
    pub others: Duration,
    /// What the proxy's stack received and sent inside the window.
    pub received: Received,
    /// What the origin's stack sent inside the window.
    pub sent: Sent,
    /// Replies of the origin that a cache may keep, warm-up included.
    pub cacheable_replies: u64,
    /// Why the times of the core do not count.
    pub flaw: Option<String>,
}

impl Rig {
    /// Builds the bed and starts all.
    pub fn build(plan: &Plan) -> Result<Rig> {
        let layout = Layout::of_this_machine();
        if layout.client_cpu == layout.server_cpu {
            let cause = "the proxy needs a CPU for itself";
            return Err(Error::unsupported("this machine has one CPU", cause));
        }
        let bed = Bed::build(layout, plan.link, plan.receive, plan.link_mbit)?;
        let wire = plan.wire.then(|| Wire::lay(&bed)).transpose()?;
        let origin = Origin::open(&bed.origin, ORIGIN_PORT)?;
        let contenders = plan.contenders.iter().map(|&contender| {
            let setting = Setting {
                modes: plan.modes,
                origin: origin_address(),
                weir: plan.weir,
                processes: 1,
                capacity: Capacity::BUSY,
                cache: plan.cache,
                connect_timeout: None,
            };
            Running::start(&bed.proxy, layout.server_cpu, contender, &setting)
        });
        let contenders = contenders.collect::<Result<_>>()?;
        let meter = IdleMeter::start(layout.server_cpu)?;
        let unloaded = busy_share(&meter, UNLOADED_WINDOW);
        let begun = (Sample::take(&meter), Spare::read(layout.server_cpu)?);
        Ok(Rig {
            bed,
            contenders,
            unloaded,
            wire,
            origin,
            sleeps: plan.link != Link::Card,
            meter,
            begun,
        })
    }

    /// Puts loads on a contender of the plan, all at the same time.
    pub fn run(&mut self, contender: Contender, loads: &[Load], span: Span) -> Result<Seen> {
        self.run_beside(contender, loads, span, || Ok(()))
    }

    /// As [`run`](Self::run), and does something more again and again meanwhile.
    pub fn run_beside(
        &mut self,
        contender: Contender,
        loads: &[Load],
        span: Span,
        mut more: impl FnMut() -> Result<()> + Send,
    ) -> Result<Seen> {
        let index = self
            .contenders
            .iter()
            .position(|one| one.contender == contender);
        let index =
            index.ok_or_else(|| Error::usage("cannot load a proxy", "it is not in the plan"))?;
        let cacheable = self.origin.cacheable_replies();
        let events = self.origin.events();
        let rest = match self.sleeps {
            true => Rest::Sleep(&events),
            false => Rest::Spin,
        };
        let (wire, origin, meter) = (&mut self.wire, &mut self.origin, &self.meter);
        let others = || {
            more()?;
            let carried = wire.as_mut().map_or(Ok(0), Wire::turn)?;
            Ok(carried + origin.turn()?)
        };
        let bed = &self.bed;
        let run = || clients::run(loads, span, rest, others, || Edge::take(bed, meter));
        let cpu = self.bed.layout.client_cpu;
        let (begun, used) = (Instant::now(), self.contenders[index].usage()?);
        let outcome = self.bed.client.run_on(Some(cpu), run);
        let whole = begun.elapsed();
        self.contenders[index].check_alive()?;
        let used = self.contenders[index].usage()?.since(&used);
        let outcome = outcome?;
        self.rest()?;
        let (first, last) = outcome.edges;
        let received = last.received?.since(&first.received?);
        let sent = last.sent?.since(&first.sent?);
        let (first, last) = (first.after, last.before);
        let span = last.at - first.at;
        let in_span = |used: Duration| used.mul_f64(span.as_secs_f64() / whole.as_secs_f64());
        let unloaded = span.mul_f64(self.unloaded);
        Ok(Seen {
            served: outcome.served,
            span,
            busy: span.saturating_sub(last.idle - first.idle + unloaded),
            processes: in_span(used.cpu),
            user: in_span(used.user),
            others: span.saturating_sub(outcome.idle),
            received,
            sent,
            cacheable_replies: self.origin.cacheable_replies() - cacheable,
            flaw: unquiet(self.unloaded),
        })
    }

    /// Carries what a load has left on its way when its clients went, which would be the next one's: of large bodies
    /// the link's queue holds a tenth of a second and more.
    fn rest(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mut last = (self.bed.received()?.packets, begun);
        while last.1.elapsed() < QUIET {
            if begun.elapsed() > LONGEST_REST {
                eprintln!("weir-lab: packets still come to the proxy after a load");
                return Ok(());
            }
            self.wire.as_mut().map_or(Ok(0), Wire::turn)?;
            self.origin.turn()?;
            let packets = self.bed.received()?.packets;
            if packets != last.0 {
                last = (packets, Instant::now());
            }
        }
        Ok(())
    }

    /// Busy share of the proxy's core since it was built, by the idle meter and by /proc/stat.
    fn busy_by_meter_and_ticks(&self) -> Result<(f64, f64)> {
        let (begun, ticks) = &self.begun;
        let ended = Sample::take(&self.meter);
        let idle = (ended.idle - begun.idle).as_secs_f64();
        let by_meter = 1.0 - idle / (ended.at - begun.at).as_secs_f64();
        let spare = Spare::read(self.bed.layout.server_cpu)?;
        Ok((by_meter, 1.0 - spare.share_since(ticks)))
    }
}

impl Drop for Rig {
    /// Says so if the two disagree: then no figure of the run is worth anything.
    fn drop(&mut self) {
        if let Ok((by_meter, by_ticks)) = self.busy_by_meter_and_ticks()
            && (by_meter - by_ticks).abs() > MAX_DISAGREEMENT
        {
            eprintln!(
                "weir-lab: the proxy's core was busy for {:.1} % by the idle meter, but {:.1} % by /proc/stat",
                by_meter * 100.0,
                by_ticks * 100.0
            );
        }
    }
}

/// Why times do not count from which so much was subtracted.
fn unquiet(unloaded: f64) -> Option<String> {
    let percent = unloaded * 100.0;
    (unloaded > MAX_UNLOADED).then(|| {
        format!("other programs took {percent:.0} % of the proxy's CPU before there was a load")
    })
}

fn busy_share(meter: &IdleMeter, window: Duration) -> f64 {
    let first = Sample::take(meter);
    std::thread::sleep(window);
    let last = Sample::take(meter);
    let span = last.at - first.at;
    1.0 - (last.idle - first.idle).as_secs_f64() / span.as_secs_f64()
}

/// The idle time of the proxy's core at a moment.
#[derive(Debug)]
struct Sample {
    at: Instant,
    idle: Duration,
}

/// What is read at an edge of a load's window. The counters take a while, in which the clients stand still: that time is
/// outside the window, which begins after the first edge and ends before the last.
struct Edge {
    before: Sample,
    received: Result<Received>,
    sent: Result<Sent>,
    after: Sample,
}

impl Edge {
    fn take(bed: &Bed, meter: &IdleMeter) -> Edge {
        Edge {
            before: Sample::take(meter),
            received: bed.received(),
            sent: Sent::read(&bed.origin),
            after: Sample::take(meter),
        }
    }
}

impl Sample {
    fn take(meter: &IdleMeter) -> Sample {
        Sample {
            at: Instant::now(),
            idle: meter.idle(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_core_that_others_use_do_not_count() {
        assert_eq!(unquiet(0.07), None);
        let flaw = unquiet(0.97).unwrap();
        assert!(flaw.contains("97 %"), "{flaw}");
    }
}
