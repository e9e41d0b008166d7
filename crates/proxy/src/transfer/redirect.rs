//! Tunnels of the engine *sockmap*: short messages go from socket to socket inside the kernel
//! ([`Redirector`](super::Redirector)), all else as with `auto`.
//!
//! A tunnel begins as any other. When both its ways have carried nothing but short messages for a
//! while, its sockets are handed to the kernel, at a moment when both ways are at rest: each waits
//! to receive, and nothing is in hand. It is taken back when the kernel passes something to user
//! space (a long message, a receiver without room) or an end comes. What was redirected has to be in
//! the receiver's send queue before user space sends there, so each way waits for that, and then
//! copies until the messages are short and both ways at rest again. Ends, resets, slow receivers and
//! bulk are therefore never the kernel's. The sockets stay in the map until they are closed, because
//! the kernel loses what arrives when they leave it; splice(2) does not see what comes through it.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use weir_core::proxy::Engine;

use super::budget::YieldBudget;
use super::course::{Course, Limit, Moved, Rules};
use super::lane::Redirect;
use super::outcome::{Broken, Tunnelled};
use super::redirector::{RedirectPair, SocketPair, Way};
use super::resources::{Resources, TransferContext};
use super::step::step;
use crate::runtime::{Clock, Handle, TcpStream, try_both};

/// Messages this long at most are better redirected than received and sent, by measurement. The
/// kernel half has the same limit for packets.
const SHORT_BYTES: usize = 2048;
/// So many short messages in a row make a tunnel one of short messages, at first: about what
/// handing over and taking back cost.
const SHORT_MESSAGES: u32 = 16;
/// The most that a tunnel has to show after it was taken back time and again.
const MOST_SHORT_MESSAGES: u32 = 4096;
/// Redirecting so many bytes was worth the handing over.
const WORTH_BYTES: u64 = 64 * 1024;
/// A silent tunnel is looked at so many times before its idle time is over.
const LOOKS: u32 = 4;

/// Carries bytes both ways until both senders have ended. `ahead` was received before.
pub async fn tunnel(
    redirect: &Redirect,
    context: TransferContext<'_>,
    ends: [&TcpStream; 2],
    ahead: [Vec<u8>; 2],
) -> Tunnelled {
    let tunnel = Tunnel {
        resources: context.resources,
        ends,
        rules: context.rules,
        redirected: Cell::new(0),
        ways: ahead.map(|ahead| State {
            ahead: Cell::new(ahead),
            ..State::default()
        }),
        met: Cell::new(false),
        short_in_a_row: Cell::new(0),
    };
    let end = tunnel.carry(redirect).await;
    let [forth, back] = tunnel.ways.map(|way| way.moved);
    Tunnelled {
        forth: forth.get(),
        back: back.get(),
        spliced: forth.spliced() + back.spliced(),
        redirected: tunnel.redirected.get(),
        end,
    }
}

/// A tunnel between two connections.
struct Tunnel<'a> {
    resources: &'a Resources,
    ends: [&'a TcpStream; 2],
    rules: Rules,
    ways: [State; 2],
    /// Bytes that the kernel carried, once the tunnel was taken back.
    redirected: Cell<u64>,
    /// Both ways stopped at rest, as was wanted.
    met: Cell<bool>,
    short_in_a_row: Cell<u32>,
}

/// Where one way stands.
#[derive(Default)]
struct State {
    /// Received before the tunnel began; goes first.
    ahead: Cell<Vec<u8>>,
    /// It waits to receive, and nothing is in hand.
    rests: Cell<bool>,
    /// Its sender's end has come and gone on.
    ended: Cell<bool>,
    /// All bytes that went on.
    moved: Moved,
    /// Bytes that user space received since the sockets were joined.
    received: Cell<u64>,
}

impl Tunnel<'_> {
    fn has_ended(&self) -> bool {
        self.ways.iter().all(|way| way.ended.get())
    }

    fn handle(&self) -> &Handle {
        self.ends[0].handle()
    }

    fn sockets(&self) -> SocketPair<'_> {
        self.ends.map(std::os::fd::AsFd::as_fd)
    }

    fn received(&self) -> [u64; 2] {
        [0, 1].map(|way| self.ways[way].received.get())
    }

    async fn carry(&self, redirect: &Redirect) -> Result<(), Broken> {
        let mut pair = None;
        let end = self.carry_by_turns(redirect, &mut pair).await;
        let Some(pair) = pair else { return end };
        let end = check_whole(&*pair).and(end);
        pair.leave(self.sockets());
        end
    }

    /// By user space and by the kernel, which has the tunnel's `pair` once there is one.
    async fn carry_by_turns(
        &self,
        redirect: &Redirect,
        pair: &mut Option<Box<dyn RedirectPair>>,
    ) -> Result<(), Broken> {
        let mut enough = SHORT_MESSAGES;
        loop {
            self.carry_until_short(pair.as_deref(), enough).await?;
            if self.has_ended() {
                return Ok(());
            }
            if pair.is_none() {
                *pair = redirect.lane.join(self.sockets());
                self.ways.iter().for_each(|way| way.received.set(0));
            }
            let redirected = match &*pair {
                Some(pair) => {
                    let redirected = self.hand_over(redirect, &**pair).await?;
                    check_whole(&**pair)?;
                    redirected
                }
                None => 0,
            };
            enough = match redirected {
                WORTH_BYTES.. => SHORT_MESSAGES,
                // A message came before all was armed, which says little of those that follow.
                0 => (enough + SHORT_MESSAGES).min(MOST_SHORT_MESSAGES),
                _ => (enough * 2).min(MOST_SHORT_MESSAGES),
            };
        }
    }

    /// Carries by user space alone, until both ways are open and so many short messages came.
    async fn carry_until_short(
        &self,
        pair: Option<&dyn RedirectPair>,
        enough: u32,
    ) -> Result<(), Broken> {
        self.short_in_a_row.set(0);
        self.met.set(false);
        let sent = [0, 1].map(|_| Cell::new(pair.is_none()));
        let received = |way: Way| {
            let received = self.ways[way].received.get();
            pair.is_none_or(|pair| received >= pair.passed(way))
        };
        let wanted = || {
            let open = self.ways.iter().all(|way| !way.ended.get());
            let at_rest = || sent.iter().all(Cell::get) && received(0) && received(1);
            open && self.short_in_a_row.get() >= enough && at_rest()
        };
        let engine = match pair {
            Some(_) => Engine::Copy,
            None => self.rules.engine,
        };
        let flow = async |way: Way| {
            if let Some(pair) = pair {
                self.wait_until_sent(pair, way, &sent[way]).await?;
            }
            self.flow(way, engine, &wanted, &received).await
        };
        try_both(pin!(flow(0)), pin!(flow(1))).await.map(drop)
    }

    /// Lets the kernel carry until it passes something on or an end comes, and takes the tunnel
    /// back; says how many bytes the kernel carried.
    async fn hand_over(&self, redirect: &Redirect, pair: &dyn RedirectPair) -> Result<u64, Broken> {
        // If more was passed by now, nothing would be redirected. If less, which must not be, it would be once as much was
        // passed, ahead of bytes that are not received yet.
        if [0, 1].map(|way| pair.passed(way)) != self.received() {
            return Ok(0);
        }
        let before = [0, 1].map(|way| pair.redirected(way));
        let watched = match pair.arm(self.sockets(), self.received()) {
            true => self.watch(redirect, pair).await,
            false => Ok(()),
        };
        pair.disarm(self.sockets());
        let redirected = [0, 1].map(|way| pair.redirected(way) - before[way]);
        self.count(0, redirected[0]);
        self.count(1, redirected[1]);
        let both = redirected.iter().sum();
        self.redirected.set(self.redirected.get() + both);
        watched.map(|()| both)
    }

    /// Waits until there is a reason to take the tunnel back.
    async fn watch(&self, redirect: &Redirect, pair: &dyn RedirectPair) -> Result<(), Broken> {
        let task = self.handle().running();
        redirect.tasks.borrow_mut().insert(pair.number(), task);
        let reason = self.reason_to_take_back(pair).await;
        redirect.tasks.borrow_mut().remove(&pair.number());
        reason
    }

    async fn reason_to_take_back(&self, pair: &dyn RedirectPair) -> Result<(), Broken> {
        let [a, b] = self.ends;
        // Or each packet would wake the thread, which has nothing to do with it.
        for end in self.ends {
            end.mute(true).map_err(Broken::From)?;
        }
        let passed = || {
            [0, 1]
                .iter()
                .any(|&way| pair.passed(way) > self.ways[way].received.get())
        };
        let reason = || (passed() || a.notices_end() || b.notices_end()).then_some(());
        let carried = || pair.redirected(0) + pair.redirected(1);
        let (mut before, mut looks) = (carried(), 0);
        while looks < LOOKS {
            self.handle().set_deadline(self.rules.idle / LOOKS);
            if self.handle().wait_for(reason).await.is_ok() {
                for end in self.ends {
                    end.mute(false).map_err(Broken::From)?;
                }
                return self.check_all();
            }
            looks = match carried() == before {
                true => looks + 1,
                false => 0,
            };
            before = carried();
        }
        Err(Broken::From(io::ErrorKind::TimedOut.into()))
    }

    fn check_all(&self) -> Result<(), Broken> {
        self.check(0)?;
        self.check(1)
    }

    /// Whether this way's receiver is still there. Its sender may have ended both its halves.
    fn check(&self, way: Way) -> Result<(), Broken> {
        let to = self.ends[1 - way];
        match to.is_broken() {
            true => Err(Broken::To(to.take_error())),
            false => Ok(()),
        }
    }

    /// The kernel thread that sends what was redirected runs at once, and the receiver has room for
    /// it; but it is another thread.
    async fn wait_until_sent(
        &self,
        pair: &dyn RedirectPair,
        way: Way,
        sent: &Cell<bool>,
    ) -> Result<(), Broken> {
        let mut pause = Duration::ZERO;
        while !sent.get() {
            if pair.is_sent(way, self.sockets()) {
                sent.set(true);
                return Ok(());
            }
            self.check(way)?;
            self.pause(pause).await.map_err(Broken::From)?;
            pause = longer(pause);
        }
        Ok(())
    }

    /// Lets the time pass for this way, whatever the other waits for.
    async fn pause(&self, time: Duration) -> io::Result<()> {
        if time.is_zero() {
            self.handle().yield_now().await;
            return Ok(());
        }
        let (over, task, handle) = (
            Rc::new(Cell::new(false)),
            self.handle().running(),
            self.handle(),
        );
        let (alarm, timer) = (over.clone(), handle.clone());
        handle.spawn(async move {
            timer.sleep(time).await;
            alarm.set(true);
            timer.wake(task);
        });
        handle.wait_for(|| over.get().then_some(())).await
    }

    /// One way, until its sender's end or until both ways rest and `wanted` is true. `ends`: reading
    /// nothing is this way's end.
    async fn flow(
        &self,
        way: Way,
        engine: Engine,
        wanted: &impl Fn() -> bool,
        ends: &impl Fn(Way) -> bool,
    ) -> Result<(), Broken> {
        let state = &self.ways[way];
        if state.ended.get() {
            return Ok(());
        }
        let (from, to) = (self.ends[way], self.ends[1 - way]);
        self.send_ahead(way).await?;
        let rules = Rules {
            engine,
            ..self.rules
        };
        let mut course = Course::new(Limit::UntilEnd, rules);
        let mut budget = YieldBudget::default();
        let mut missing = None;
        loop {
            course.restart_idle_time(from);
            if course.slow {
                to.writable().await.map_err(Broken::To)?;
            }
            if self.rest(way, wanted).await? {
                return Ok(());
            }
            match step(self.resources, from, to, &mut course).await? {
                None => continue,
                Some(0) if ends(way) => break,
                Some(0) => self.wait_for_passed(&mut missing).await?,
                Some(bytes) => {
                    missing = None;
                    course.advance(bytes, &self.ways[way].moved, &self.ways[1 - way].moved);
                    self.took(way, bytes);
                    budget.spend(bytes, self.handle()).await;
                }
            }
        }
        to.shut_down_write();
        state.ended.set(true);
        // The other way may rest already, and not know that this one does for ever.
        self.handle().wake(self.handle().running());
        Ok(())
    }

    /// Pauses once more where the sender's end is there and bytes before it are not yet. What the kernel has lost
    /// never comes: not for longer than the idle time.
    async fn wait_for_passed(&self, missing: &mut Option<(Clock, Duration)>) -> Result<(), Broken> {
        let now = self.handle().now();
        let (since, pause) = missing.unwrap_or((now, FIRST_PAUSE));
        if u128::from(now - since) > self.rules.idle.as_millis() {
            return Err(Broken::From(io::ErrorKind::TimedOut.into()));
        }
        self.pause(pause).await.map_err(Broken::From)?;
        *missing = Some((since, longer(pause)));
        Ok(())
    }

    async fn send_ahead(&self, way: Way) -> Result<(), Broken> {
        let ahead = self.ways[way].ahead.take();
        let to = self.ends[1 - way];
        to.send_all(&ahead, false).await.map_err(Broken::To)?;
        self.count(way, ahead.len() as u64);
        Ok(())
    }

    fn count(&self, way: Way, bytes: u64) {
        self.ways[way].moved.add(bytes);
    }

    fn took(&self, way: Way, bytes: usize) {
        let state = &self.ways[way];
        state.received.set(state.received.get() + bytes as u64);
        self.short_in_a_row.set(match bytes <= SHORT_BYTES {
            true => self.short_in_a_row.get().saturating_add(1),
            false => 0,
        });
    }

    /// Waits until there is something to receive (false), or both ways rest as wanted (true).
    async fn rest(&self, way: Way, wanted: &impl Fn() -> bool) -> Result<bool, Broken> {
        let (from, to) = (self.ends[way], self.ends[1 - way]);
        let state = &self.ways[way];
        let met = || {
            state.rests.set(true);
            self.meet(wanted)
        };
        let waited = from.readable_or_broken_or(to, met).await;
        state.rests.set(false);
        waited.map_err(Broken::From)?;
        if self.met.get() {
            return Ok(true);
        }
        self.check(way).map(|()| false)
    }

    /// Whether both ways rest and stop. The first that finds it so lets the other look again.
    fn meet(&self, wanted: impl Fn() -> bool) -> bool {
        let rests = |way: &State| way.rests.get() || way.ended.get();
        if !self.met.get() && self.ways.iter().all(rests) && wanted() {
            self.met.set(true);
            self.handle().wake(self.handle().running());
        }
        self.met.get()
    }
}

/// Whether all came that the kernel has acknowledged. What it lost never does.
fn check_whole(pair: &dyn RedirectPair) -> Result<(), Broken> {
    match pair.has_lost(0) || pair.has_lost(1) {
        true => Err(Broken::From(io::ErrorKind::OutOfMemory.into())),
        false => Ok(()),
    }
}

/// How long a way pauses before it asks again whether what was redirected has been sent, or looks
/// again for what was passed.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

fn longer(pause: Duration) -> Duration {
    (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE)
}
