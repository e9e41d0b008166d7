//! ns per enqueue and dequeue of each queueing discipline, and the memory of its state: `make bench`. Only the rows
//! whose name has a word in it: `cargo bench -p weir-sim --bench queues -- spa`.
//!
//! Two loads, each with 60 packets waiting: `data`, full packets of 50 flows, and `mix`, in which one of six packets is
//! a SYN, as in traffic of short connections. A round measures all disciplines one right after the other, and a limit
//! is judged by the median of the rounds' ratios: SPA to CoDel, `spa-fq` to FQ-CoDel. A slower machine hardly changes
//! these. The benchmark fails when one is over its limit. Needs no root.

use std::hint::black_box;
use std::time::Instant;

use weir_sim::aqm::{AnyQueue, Aqm, Cause, Control, Discipline, Ecn, Hooks, Packet, Setup};

const ROUNDS: usize = 301;
/// Short: a round is seldom interrupted.
const REPEAT: usize = 10_000;
const WAITING: usize = 60;
/// Packets of a load, used again and again.
const PACKETS: usize = 4096;
/// 1 Gb/s: no packet waits as long as CoDel's target.
const RATE: u64 = 125_000_000;

/// What is judged: a discipline, by which other, and how many times its time it may take with data alone and with the
/// mix. The aim for `spa-fq` is FQ-CoDel's time. It treats data as FQ-CoDel does, after one look at the packet's flags
/// and one at the high queue: with data alone it can only be as fast, and takes 1.00 to 1.02 times as long. The median
/// of equal times is on either side of 1, so a limit of 1.0 would fail by chance there. With the mix it is 1.0.
const LIMITS: [(Discipline, Discipline, [f64; 2]); 2] = [
    (Discipline::Spa, Discipline::Codel, [1.2, 1.2]),
    (Discipline::SpaFq, Discipline::FqCodel, [1.05, 1.0]),
];
/// SPA's state, of FQ-CoDel's.
const MEMORY_LIMIT: f64 = 0.1;

/// About what an entry for a real packet has.
#[derive(Clone, Copy)]
struct Entry {
    flow_hash: u32,
    source_hash: u32,
    len: u32,
    control: Control,
    ecn: Ecn,
}

impl Packet for Entry {
    fn len_bytes(&self) -> u32 {
        self.len
    }

    fn flow_hash(&self) -> u32 {
        self.flow_hash
    }

    fn source_hash(&self) -> u32 {
        self.source_hash
    }

    fn destination_hash(&self) -> u32 {
        0
    }

    fn control(&self) -> Control {
        self.control
    }

    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn set_ce(&mut self) {
        self.ecn = Ecn::Ce;
    }
}

/// xorshift32 (Marsaglia 2003).
struct World {
    state: u32,
    dropped: u64,
}

impl Hooks<Entry> for World {
    fn random(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        self.state
    }

    fn dropped(&mut self, _packet: Entry, _cause: Cause) {
        self.dropped += 1;
    }
}

/// The packets of a load; one in `syn_in` is a SYN, none if that is 0.
fn load(syn_in: u32) -> Vec<Entry> {
    let mut world = World {
        state: 2_463_534_242,
        dropped: 0,
    };
    let mut packet = |_| {
        let is_syn = syn_in > 0 && world.random().is_multiple_of(syn_in);
        let flow = match is_syn {
            true => world.random(),
            false => world.random() % 50,
        };
        Entry {
            flow_hash: flow.wrapping_mul(0x9e37_79b1),
            source_hash: world.random() % 64,
            len: if is_syn { 60 } else { 1514 },
            control: if is_syn { Control::Syn } else { Control::None },
            ecn: Ecn::NotEct,
        }
    };
    (0..PACKETS).map(&mut packet).collect()
}

/// ns for one packet in and one out.
fn measure(discipline: Discipline, packets: &[Entry]) -> f64 {
    let mut queue = AnyQueue::new(&Setup::new(RATE), discipline);
    let mut world = World {
        state: 1,
        dropped: 0,
    };
    let mut now_ns = 1_000_000_000;
    let mut of_all = packets.iter().cycle();
    let mut one = |queue: &mut AnyQueue<Entry>, now_ns| {
        let packet = of_all.next().expect("a cycle");
        queue.enqueue(*black_box(packet), now_ns, &mut world);
    };
    for _ in 0..WAITING {
        one(&mut queue, now_ns);
    }
    // The first packets make the pool grow.
    for warm_up in [true, false] {
        let begun = Instant::now();
        let count = if warm_up { 1000 } else { REPEAT };
        for _ in 0..count {
            now_ns += 10_000;
            one(&mut queue, now_ns);
            let mut nothing = World {
                state: 1,
                dropped: 0,
            };
            black_box(queue.dequeue(now_ns, &mut nothing));
        }
        if !warm_up {
            return begun.elapsed().as_nanos() as f64 / REPEAT as f64;
        }
    }
    unreachable!("the second turn returns")
}

fn main() {
    let wanted: Vec<Discipline> = Discipline::ALL
        .into_iter()
        .filter(|discipline| wanted(discipline.name()))
        .collect();
    let mut missed = 0;
    println!(
        "one packet in and one out, {WAITING} waiting; median of {ROUNDS} rounds of {REPEAT}\n"
    );
    println!(
        "{:<28}{:>8}{:>16}{:>24}{:>8}",
        "discipline, load", "ns", "quartiles", "ratio", "limit"
    );
    for (load_at, (name, syn_in)) in [("data", 0), ("mix", 6)].into_iter().enumerate() {
        let packets = load(syn_in);
        let rounds: Vec<Vec<f64>> = (0..ROUNDS)
            .map(|_| {
                wanted
                    .iter()
                    .map(|discipline| measure(*discipline, &packets))
                    .collect()
            })
            .collect();
        for (at, discipline) in wanted.iter().enumerate() {
            let mut times: Vec<f64> = rounds.iter().map(|round| round[at]).collect();
            let (low, median, high) = quartiles(&mut times);
            let row = format!("{discipline}, {name}");
            let box_text = format!("{low:.0} .. {high:.0}");
            let judged = ratio(*discipline, &wanted, &rounds);
            let text = judged.map_or(String::new(), |(of, ratio, limits)| {
                let limit = limits[load_at];
                let verdict = if ratio <= limit { "" } else { "  OVER" };
                missed += usize::from(ratio > limit);
                format!("{:>24}{limit:>8.2}{verdict}", format!("{ratio:.2} {of}"))
            });
            println!("{row:<28}{median:>8.1}{box_text:>16}{text}");
        }
    }
    missed += memory();
    if missed > 0 {
        println!("\n{missed} over its limit");
        std::process::exit(1);
    }
}

/// The median ratio to the discipline by which this one is judged, and its limit.
fn ratio(
    discipline: Discipline,
    measured: &[Discipline],
    rounds: &[Vec<f64>],
) -> Option<(Discipline, f64, [f64; 2])> {
    let (_, of, limits) = LIMITS
        .into_iter()
        .find(|(judged, ..)| *judged == discipline)?;
    let at = |wanted| measured.iter().position(|discipline| *discipline == wanted);
    let (one, other) = (at(discipline)?, at(of)?);
    let mut ratios: Vec<f64> = rounds
        .iter()
        .map(|round| round[one] / round[other])
        .collect();
    Some((of, quartiles(&mut ratios).1, limits))
}

/// Prints the bytes of each discipline's state; returns how many are over the limit.
fn memory() -> usize {
    println!("\nbytes of state, without the packets that wait\n");
    let bytes = |discipline| AnyQueue::<Entry>::new(&Setup::new(RATE), discipline).state_bytes();
    for discipline in Discipline::ALL {
        println!("{:<28}{:>8}", discipline.name(), bytes(discipline));
    }
    let share = bytes(Discipline::Spa) as f64 / bytes(Discipline::FqCodel) as f64;
    println!("\nspa, of fq-codel: {share:.3}, limit {MEMORY_LIMIT}");
    usize::from(share > MEMORY_LIMIT)
}

/// Whether the command line has no word, or one that is in the name. cargo adds `--bench`.
fn wanted(name: &str) -> bool {
    let mut words = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .peekable();
    words.peek().is_none() || words.any(|word| name.contains(&word))
}

fn quartiles(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    (at(0.25), at(0.5), at(0.75))
}
