//! Qdiscs on devices, by tc(8).

use std::process::Command;

use serde_json::Value;
use weir_sim::aqm::Discipline;
use weir_testbed::needs;

use crate::error::{Context, Error, Result};
use crate::experiments::judges::arrivals::FULL_BYTES;
use crate::netns::Netns;
use crate::run::results::Facts;

/// Packets that pass before their transmission time, at most, bytes: HTB makes good for a wake-up that is late by so
/// much, 0.7 ms on 2.4 Mb/s.
const BURST_BYTES: u32 = 200;

/// Notes the kernel.
pub fn note_kernel(facts: &mut Facts) -> Result<()> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let kernel = kernel.context("cannot tell the kernel's version")?;
    facts.insert("judge".into(), format!("Linux {}", kernel.trim()).into());
    Ok(())
}

/// tc's words for a discipline with the parameters of [`weir_sim::aqm::Setup`].
fn qdisc(discipline: Discipline, bits_per_s: u64) -> Result<String> {
    let limit = 100 * FULL_BYTES;
    let words = match discipline {
        Discipline::Fifo => "pfifo limit 100".to_owned(),
        Discipline::Bfifo => format!("bfifo limit {limit}"),
        Discipline::Red => {
            let (min, max) = (limit / 12, limit / 4);
            let burst = (2 * min + max) / (3 * 1000);
            format!(
                "red limit {limit} min {min} max {max} avpkt 1000 burst {burst} \
                 bandwidth {bits_per_s}bit probability 0.02"
            )
        }
        Discipline::Codel => "codel limit 1000 target 5ms interval 100ms noecn".to_owned(),
        Discipline::FqCodel => format!(
            "fq_codel limit 10240 flows 1024 quantum {FULL_BYTES} target 5ms interval 100ms noecn"
        ),
        Discipline::Pie => {
            "pie limit 1000 target 15ms tupdate 15ms alpha 2 beta 20 noecn".to_owned()
        }
        Discipline::Sfq => format!("sfq limit 127 quantum {FULL_BYTES}"),
        _ => {
            let cause = "the kernel has no qdisc for it";
            return Err(Error::usage(format!("bad discipline {discipline}"), cause));
        }
    };
    Ok(words)
}

/// Puts a discipline on a device, with this rate. CAKE has a shaper of its own, the others are behind HTB.
pub fn limit(netns: &Netns, device: &str, bits_per_s: u64, discipline: Discipline) -> Result<()> {
    if discipline == Discipline::Cake {
        let words = format!("qdisc add dev {device} root handle 1: cake bandwidth {bits_per_s}bit");
        return tc(netns, &words).map(drop);
    }
    below_htb(netns, device, bits_per_s, &qdisc(discipline, bits_per_s)?)
}

/// Puts a qdisc, in tc's words, on a device behind HTB, with this rate.
pub fn below_htb(netns: &Netns, device: &str, bits_per_s: u64, qdisc: &str) -> Result<()> {
    let root = format!("qdisc add dev {device} root handle 1: htb default 1");
    let class = format!(
        "class add dev {device} parent 1: classid 1:1 htb rate {bits_per_s}bit \
         burst {BURST_BYTES} cburst {BURST_BYTES} quantum {FULL_BYTES}"
    );
    let leaf = format!("qdisc add dev {device} parent 1:1 handle 2: {qdisc}");
    for words in [root, class, leaf] {
        tc(netns, &words)?;
    }
    Ok(())
}

/// What tc(8) prints.
pub fn tc(netns: &Netns, words: &str) -> Result<String> {
    run_in(netns, needs::command("tc"), words)
}

/// What a program prints in a namespace.
pub fn run_in(netns: &Netns, mut command: Command, words: &str) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let what = || format!("cannot run `{program} {words}`");
    command.args(words.split_whitespace());
    let output = netns.run(|| command.output().context(what()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(Error::failed(what(), errors.trim()))
        }
    }
}

/// Packets that a device's root qdisc has sent and dropped.
pub fn sent_and_dropped(netns: &Netns, device: &str) -> Result<(u64, u64)> {
    let text = tc(netns, &format!("-s -j qdisc show dev {device} root"))?;
    let what = "cannot read the counters of a qdisc";
    let all: Value = serde_json::from_str(&text).context(what)?;
    let of = |name: &str| all[0][name].as_u64();
    let counts = of("packets").zip(of("drops"));
    counts.ok_or_else(|| Error::failed(what, text))
}
