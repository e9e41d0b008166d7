//! Lets the kernel gather more of a long body before it reports it (SO_RCVLOWAT): the fewer times a thread is woken for
//! the same bytes, the less they cost. Only while they come so fast that the receiver hardly waits for them.

use std::io;

use super::ByteSource;
use super::course::{Course, Limit};
use crate::runtime::{Clock, TcpStream};
use crate::sys;

/// What is gathered: nearly three packets of the longest that GRO makes, which still fit into a pipe.
const GATHERED_BYTES: u64 = 184 * 1024;
/// How long that may take at the speed of the body so far, in ms.
const USUAL_TIME: Clock = 40;
/// After this time, in ms, the kernel reports what is there, and from then on all that comes.
const LONGEST_TIME: Clock = 2 * USUAL_TIME;
/// So long, in ms, the end of what was sent on is held back for what comes next; else the kernel does it for 200 ms.
const LONGEST_HOLD: Clock = 20;

/// While less is there than it gathers, the kernel acknowledges every second segment, or every packet that GRO joins
/// (`__tcp_ack_snd_check`). With more acknowledgements than this for what is gathered, each a packet that this thread's core
/// sends, gathering costs more than it saves: segments come one by one.
const MOST_ACKNOWLEDGEMENTS: u32 = 30;
/// After so many times in a row a connection gathers no more. Losses too are acknowledged segment by segment.
const COSTLY_TIMES: u8 = 3;

/// What the sender's socket gathers, for the time of one body.
pub struct Gathering<'a> {
    from: &'a TcpStream,
    began: Clock,
    gathers: bool,
    paused: bool,
    /// Of what was sent before the transfer began.
    held_back: bool,
}

impl Gathering<'_> {
    /// Gathers nothing yet. `held_back`: the last segment of what was sent before waits for the first bytes.
    pub fn new(from: &TcpStream, held_back: bool) -> Gathering<'_> {
        Gathering {
            from,
            began: from.handle().now(),
            gathers: false,
            paused: false,
            held_back,
        }
    }

    fn pays(&self, course: &Course) -> bool {
        let time = self.from.handle().now() - self.began;
        let is_body = course.limit != Limit::UntilEnd;
        let takes_all = course.splices && !course.slow;
        // What is there and not reported counts as silence.
        let may_wait = !self.paused
            && self.from.note() < COSTLY_TIMES
            && course.rules.idle.as_millis() > 2 * LONGEST_TIME as u128;
        is_body && takes_all && may_wait && is_worth_it(course.moved, course.left(), time)
    }

    fn set(&mut self, gathers: bool) {
        if self.gathers != gathers {
            self.gathers = gathers;
            let bytes = if gathers { GATHERED_BYTES } else { 1 };
            // If it fails the kernel tells of every byte, as ever.
            let _ = sys::set_receive_low_water(self.from, bytes as usize);
        }
    }
}

impl ByteSource for Gathering<'_> {
    fn stream(&self) -> &TcpStream {
        self.from
    }

    async fn readable_or_broken(&mut self, to: &TcpStream, course: &mut Course) -> io::Result<()> {
        let from = self.from;
        course.more |= std::mem::take(&mut self.held_back);
        if from.may_be_readable() {
            return Ok(());
        }
        self.set(self.pays(course));
        if !self.gathers {
            return readable_or_pushed(from, to, &mut course.more).await;
        }
        let before = sys::acknowledgements_sent(from);
        self.paused = is_late(from, to, LONGEST_TIME).await?;
        if self.paused {
            self.set(false);
            push(to, &mut course.more);
        } else if let (Ok(before), Ok(after)) = (before, sys::acknowledgements_sent(from)) {
            let number = after.wrapping_sub(before);
            from.set_note(costly_times(from.note(), number));
        }
        Ok(())
    }
}

/// Waits until a read is worth a try, or `to` has been reset by its peer. What is `held_back` for `to` waits with it, but
/// not for long.
///
/// # Errors
/// `TimedOut` after the task's deadline.
pub async fn readable_or_pushed(
    from: &TcpStream,
    to: &TcpStream,
    held_back: &mut bool,
) -> io::Result<()> {
    if *held_back && is_late(from, to, LONGEST_HOLD).await? {
        push(to, held_back);
    }
    from.readable_or_broken(to).await
}

fn push(to: &TcpStream, held_back: &mut bool) {
    if std::mem::take(held_back) {
        to.push();
    }
}

/// Whether so many ms pass before a read is worth a try or `to` has been reset.
async fn is_late(from: &TcpStream, to: &TcpStream, time: Clock) -> io::Result<bool> {
    let late = from.late_after(time);
    from.readable_or_broken_or(to, &late).await?;
    let is_late = !from.may_be_readable() && late();
    from.handle().forget_reminder();
    Ok(is_late)
}

impl Drop for Gathering<'_> {
    /// The next reader wants every byte.
    fn drop(&mut self) {
        self.set(false);
    }
}

/// How often in a row gathering has cost too much, with this time: so many acknowledgements were sent.
fn costly_times(times: u8, acknowledgements: u32) -> u8 {
    match acknowledgements > MOST_ACKNOWLEDGEMENTS {
        true => (times + 1).min(COSTLY_TIMES),
        false => 0,
    }
}

/// Whether to gather where `moved` bytes of a body came in `time` ms and so many are left. The first ones never wait.
fn is_worth_it(moved: u64, left: u64, time: Clock) -> bool {
    let is_fast = moved.saturating_mul(USUAL_TIME) >= GATHERED_BYTES.saturating_mul(time);
    moved > 0 && is_fast && left >= GATHERED_BYTES
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use weir_core::proxy::{Engine, SideOptions};

    use super::super::{Moved, Resources, Rules, TransferContext, transfer};
    use super::*;
    use crate::runtime::{Handle, ListenOptions, Runtime, TcpListener};

    const KIB: u64 = 1024;

    #[test]
    fn only_a_fast_and_long_body_is_gathered_and_never_its_beginning() {
        assert!(is_worth_it(64 * KIB, 184 * KIB, 0));
        assert!(is_worth_it(1000 * KIB, u64::MAX, 217));
        assert!(!is_worth_it(1000 * KIB, u64::MAX, 218), "too slow");
        assert!(!is_worth_it(64 * KIB, 184 * KIB - 1, 0), "too short");
        assert!(!is_worth_it(0, u64::MAX, 0), "the beginning");
    }

    #[test]
    fn gathering_ends_where_each_second_segment_is_acknowledged_and_not_for_one_loss() {
        let segments_one_by_one = (GATHERED_BYTES / 1448 / 2) as u32;
        let joined_by_gro = (GATHERED_BYTES / (17 * 1448)) as u32;
        let after = |numbers: &[u32]| {
            let times = numbers.iter();
            times.fold(0, |times, &number| costly_times(times, number))
        };
        assert_eq!(after(&[segments_one_by_one; 9]), COSTLY_TIMES);
        assert_eq!(after(&[joined_by_gro; 9]), 0);
        let losses = [joined_by_gro, segments_one_by_one, segments_one_by_one];
        assert!(after(&losses.repeat(9)) < COSTLY_TIMES);
    }

    async fn pair(handle: &Handle) -> [TcpStream; 2] {
        let any = "127.0.0.1:0".parse().unwrap();
        let options = ListenOptions {
            backlog: 1,
            ..ListenOptions::default()
        };
        let listener = TcpListener::open(any, &options).unwrap();
        let address = rustix::net::getsockname(&listener).unwrap();
        let address = address.try_into().unwrap();
        let options = SideOptions::default();
        let near = TcpStream::connect(handle, address, None, &options);
        let near = near.await.unwrap();
        let far = rustix::net::accept(&listener).unwrap();
        rustix::io::ioctl_fionbio(&far, true).unwrap();
        [near, TcpStream::attach(far, handle)]
    }

    fn low_water(stream: &TcpStream) -> usize {
        sys::receive_low_water(stream).unwrap()
    }

    /// Sends `pieces` of a body of 1 MiB, each once the one before has gone on, and says how much the sender's socket
    /// was to gather after each; and at last, when `ending` has been sent too and all is over.
    fn low_waters(pieces: Vec<usize>, ending: usize) -> Vec<usize> {
        let runtime = Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        let main = async move {
            handle.set_deadline(Duration::from_secs(20));
            let [origin, from] = pair(&handle).await.map(Rc::new);
            let [to, client] = pair(&handle).await.map(Rc::new);
            let moved = Rc::new(Moved::default());
            let over = Rc::new(std::cell::Cell::new(false));
            let moving = (from.clone(), to.clone(), moved.clone(), over.clone());
            handle.spawn(async move {
                let (from, to, moved, over) = moving;
                let rules = Rules {
                    engine: Engine::Splice,
                    idle: Duration::from_secs(20),
                };
                let (resources, back) = (Resources::new(16, None), Moved::default());
                let limit = Limit::Bytes(1024 * KIB);
                let sender = Gathering::new(&from, false);
                let context = TransferContext {
                    resources: &resources,
                    rules,
                };
                let done = transfer(context, sender, &to, limit, [&moved, &back]);
                let _ = done.await;
                over.set(true);
            });
            let buffer = vec![7; 1 << 20];
            let mut seen = Vec::new();
            let (mut sent, mut taken) = (0, vec![0; 1 << 20]);
            for piece in pieces {
                origin.send_all(&buffer[..piece], false).await.unwrap();
                sent += piece;
                while moved.get() < sent as u64 {
                    let _ = client.try_receive(&mut taken);
                    handle.yield_now().await;
                }
                // After a splice it is the others' turn before it looks for more.
                for _ in 0..3 {
                    handle.yield_now().await;
                }
                seen.push(low_water(&from));
            }
            origin.send_all(&buffer[..ending], false).await.unwrap();
            origin.shut_down_write();
            while !over.get() {
                let _ = client.try_receive(&mut taken);
                handle.yield_now().await;
            }
            seen.push(low_water(&from));
            seen
        };
        runtime.run(main).unwrap()
    }

    /// The most that a splice moves from a sender that always has more before another task of the thread has its turn.
    fn most_in_a_turn() -> u64 {
        let runtime = Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        let main = async move {
            handle.set_deadline(Duration::from_secs(20));
            let [origin, from] = pair(&handle).await;
            let [to, client] = pair(&handle).await;
            let moved = Rc::new(Moved::default());
            let counted = moved.clone();
            let [origin, client] = [origin, client].map(|stream| stream.detach().unwrap());
            let [mut origin, mut client] = [origin, client].map(std::net::TcpStream::from);
            for stream in [&origin, &client] {
                stream.set_nonblocking(false).unwrap();
            }
            let sender = std::thread::spawn(move || {
                let piece = vec![7; 1448];
                while std::io::Write::write_all(&mut origin, &piece).is_ok() {}
            });
            let reader = std::thread::spawn(move || {
                let mut taken = vec![0; 1 << 20];
                while std::io::Read::read(&mut client, &mut taken).is_ok_and(|read| read > 0) {}
            });
            let mover = handle.clone();
            handle.spawn(async move {
                mover.set_deadline(Duration::from_secs(20));
                let rules = Rules {
                    engine: Engine::Splice,
                    idle: Duration::from_secs(20),
                };
                let (resources, back) = (Resources::new(16, None), Moved::default());
                let context = TransferContext {
                    resources: &resources,
                    rules,
                };
                let limit = Limit::Bytes(64 << 20);
                let _ = transfer(context, &from, &to, limit, [&counted, &back]).await;
            });
            let (mut last, mut most) = (0, 0);
            while moved.get() < 64 << 20 {
                handle.yield_now().await;
                most = most.max(moved.get() - last);
                last = moved.get();
            }
            (most, sender, reader)
        };
        let (most, sender, reader) = runtime.run(main).unwrap();
        sender.join().unwrap();
        reader.join().unwrap();
        most
    }

    #[test]
    fn the_other_tasks_have_their_turn_after_each_splice() {
        assert!(most_in_a_turn() <= 256 * KIB);
    }

    /// A machine that stands still for 20 ms makes any body slow: not 20 times in a row.
    fn expect(low_water_after: &[usize], pieces: &[usize], ending: usize) {
        let tries = || low_waters(pieces.to_vec(), ending) == low_water_after;
        assert!(std::iter::repeat_with(tries).take(20).any(|held| held));
    }

    #[test]
    fn a_sender_that_pauses_is_not_waited_for_and_the_next_reader_gets_every_byte() {
        let all = 184 * 1024;
        // The second is less than is gathered: it goes on when the time is over, and the others at once.
        let pieces = [100_000, 1000, 1000, 200_000];
        expect(&[all, 1, 1, 1, 1], &pieces, 0);
        expect(&[all, all, 1], &[100_000, 200_000], 100_000);
        expect(&[all, 1], &[100_000], 1_048_576 - 100_000);
    }
}
