//! A listen queue that is full, or in which clients wait for long: the trouble that weir is for, so it is told first.

use std::time::SystemTime;

use weir_core::units::{about_duration, about_rate};

use crate::host::diagnosis::finding::{Finding, Object, QueueFigures, State, finding_about};
use crate::host::diagnosis::socket::{Pace, Queue, Socket};
use crate::show::describe::{self, percent};

/// What there is to say of a socket whose queue is full.
pub fn full_queue(socket: &Socket) -> Option<Finding> {
    let queue = socket.queue.filter(|_| socket.is_full())?;
    let is = match queue.length >= socket.limit {
        true => "is full",
        false => "was full",
    };
    let text = format!(
        "{is}: {} of {} places are taken{}, {} SYNs and ACKs dropped since it listens (several of each client), {} of them in \
         the last {}. {}",
        queue.length,
        socket.limit,
        gone(&queue),
        queue.dropped,
        queue.dropped_now,
        about_duration(queue.time),
        pace(socket, &queue),
    );
    Some(about(socket, &queue, State::No, text))
}

/// What there is to say of a socket whose queue has places, and whose clients wait for long.
pub fn long_queue(socket: &Socket) -> Option<Finding> {
    let is_long = socket.is_long() && !socket.is_full();
    let queue = socket.queue.filter(|_| is_long)?;
    let text = format!(
        "is long: {} of {} places are taken{}, so no client is turned away, and all wait. {}",
        queue.length,
        socket.limit,
        gone(&queue),
        pace(socket, &queue),
    );
    Some(about(socket, &queue, State::Warn, text))
}

fn about(socket: &Socket, queue: &Queue, state: State, text: String) -> Finding {
    let object = Object {
        name: named(socket),
        kind: "sockets",
    };
    let accepts_per_second = queue.pace().map(|pace| match pace {
        Pace::Stopped(_) => 0.0,
        Pace::Accepts(per_second) => (per_second * 10.0).round() / 10.0,
    });
    Finding {
        queue: Some(QueueFigures {
            address: socket.address.clone(),
            process: socket.server.clone(),
            pid: socket.pid,
            queue_length: queue.length,
            queue_limit: socket.limit,
            gone: queue.gone,
            packets_dropped: queue.dropped,
            accepts_per_second,
            started_unix_ms: socket.started.and_then(unix_ms),
            wait_us: socket.wait().map(|wait| wait.as_micros() as u64),
        }),
        ..finding_about("queue of", object, state, text, hint(socket, queue))
    }
}

fn unix_ms(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_millis() as u64)
}

/// `*:3000 (node, pid 4711)`
fn named(socket: &Socket) -> String {
    let address = ["0.0.0.0:", "[::]:"]
        .iter()
        .find_map(|any| socket.address.strip_prefix(any))
        .map_or(socket.address.clone(), |port| format!("*:{port}"));
    match (&socket.server, socket.pid) {
        (Some(server), Some(pid)) => format!("{address} ({server}, pid {pid})"),
        _ => address,
    }
}

/// `, 480 of them by clients that have gone`
fn gone(queue: &Queue) -> String {
    let gone = queue.gone.filter(|gone| *gone > 0);
    gone.map_or(String::new(), |gone| {
        format!(", {gone} of them by clients that have gone")
    })
}

/// What the server makes of its queue, and how long clients wait therefore.
fn pace(socket: &Socket, queue: &Queue) -> String {
    let wait = socket.wait().map(about_duration);
    match (queue.pace(), wait) {
        (Some(Pace::Stopped(time)), _) => format!(
            "The server has accepted nothing for {}: it has stopped",
            about_duration(time)
        ),
        (Some(Pace::Accepts(per_second)), Some(wait)) => format!(
            "The server accepts about {}/s: who comes now waits {wait} for accept()",
            about_rate(per_second)
        ),
        (_, Some(wait)) => format!("Who comes now waits {wait} for accept()"),
        _ => "The server accepts more slowly than clients come".to_owned(),
    }
}

fn hint(socket: &Socket, queue: &Queue) -> String {
    let port = socket.address.rsplit(':').next().unwrap_or_default();
    let drains = drains(socket, queue);
    let cure = cure(socket, queue);
    match &socket.guarded {
        None if socket.is_guarded_outside => format!(
            "a weir outside of this network namespace has its programs on the interfaces here, so start no second one: `weir \
             status` where it runs says whether it guards port {port} here, and what it refuses. {drains}; {cure}"
        ),
        None => format!(
            "`weir protect {port} --observe` says how long clients wait and how many weir would refuse; `weir protect {port}` \
             tells those at once whom the server cannot serve in time. {drains}; {cure}"
        ),
        Some(guarded) if guarded.enforces => format!(
            "weir guards it as {}: `weir status` and `weir events` say what it refuses and what it waits for. {drains}; {cure}",
            guarded.listener
        ),
        Some(guarded) => {
            let which = match guarded.would_refuse {
                Some((offered, refused)) => format!(
                    "about {} of the {} so far",
                    percent(refused as f64 / offered.max(1) as f64),
                    describe::count(offered as usize, "connection")
                ),
                None => "those that the server cannot serve in time".to_owned(),
            };
            format!(
                "weir only observes it, as {}: with mode = \"enforce\" it would have refused {which} at once. {drains}; {cure}",
                guarded.listener
            )
        }
    }
}

/// What becomes of those that wait already: refusing makes no place for anybody before them.
fn drains(socket: &Socket, queue: &Queue) -> String {
    if matches!(queue.pace(), Some(Pace::Stopped(_))) {
        return "Nobody is served while the server accepts nothing".to_owned();
    }
    let lasts = socket.wait().map_or(String::new(), |wait| {
        format!(", which takes about {}", about_duration(wait))
    });
    format!(
        "Once it refuses, the queue drains first{lasts}: until then new clients are refused; those let in afterwards are served \
         promptly. A restart of the server empties the queue at once"
    )
}

fn cure(socket: &Socket, queue: &Queue) -> String {
    if matches!(queue.pace(), Some(Pace::Stopped(_))) {
        let it = socket.pid.map_or("the process".to_owned(), |pid| {
            format!("process {pid} (`cat /proc/{pid}/stack`, `strace -f -p {pid}`)")
        });
        return format!("look at what {it} waits for, or restart it");
    }
    "have it accept faster: more workers, or less work on the thread that accepts. A larger backlog only makes clients wait for \
     longer"
        .to_owned()
}
