//! The rows that the benchmarks of packets print.
//!
//! A row is judged by a ratio, which a slower machine does not change. Both terms of a ratio are of one round. A benchmark
//! fails when the median of a row's ratios is over its limit.

/// The most that a row may take, in multiples of something that is measured beside it.
#[derive(Clone, Copy)]
pub enum Limit {
    /// A run of the empty program and what the guard adds, by the run of the empty program.
    Empty(f64),
    /// What the guard adds, by the kernel's socket lookup.
    Lookups(f64),
}

/// Ends the program where it cannot measure.
pub fn need_root() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("the benchmark needs root: BPF_PROG_TEST_RUN");
        std::process::exit(1);
    }
}

/// What is above the rows.
pub fn print_head(rounds: usize, repeat: u32) {
    println!("what the guard adds to a packet; median of {rounds} rounds of {repeat} packets\n");
    println!(
        "{:<44}{:>8}{:>16}{:>24}{:>8}",
        "packet", "ns", "quartiles", "ratio", "limit"
    );
}

/// What the ratios have below the line.
pub fn print_constant(name: &str, ns: f64) {
    println!("{name:<44}{ns:>8.0}");
}

/// Ends the program with a failure where so many rows are over their limits.
pub fn end(missed: usize) {
    if missed > 0 {
        println!("\n{missed} over its limit");
        std::process::exit(1);
    }
}

/// Whether the command line has no word, or one that is in the name. cargo adds `--bench`.
pub fn wanted(name: &str) -> bool {
    let mut words = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .peekable();
    words.peek().is_none() || words.any(|word| name.contains(&word))
}

/// False when the median of the ratios is over the limit.
pub fn print_row(name: &str, differences: &mut [f64], ratios: &mut [f64], limit: Limit) -> bool {
    let (low, median, high) = quartiles(differences);
    let (_, ratio, _) = quartiles(ratios);
    let quartiles = format!("{low:.0} .. {high:.0}");
    let (limit, unit) = match limit {
        Limit::Empty(limit) => (limit, "empty programs"),
        Limit::Lookups(limit) => (limit, "lookups"),
    };
    let verdict = if ratio <= limit { "" } else { "  OVER" };
    let ratio_text = format!("{ratio:.2} {unit}");
    println!("{name:<44}{median:>8.0}{quartiles:>16}{ratio_text:>24}{limit:>8.2}{verdict}");
    ratio <= limit
}

/// A quarter of the values is below the first, half of them below the second, a quarter above the third.
pub fn quartiles(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    (at(0.25), at(0.5), at(0.75))
}
