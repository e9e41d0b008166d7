//! What the qdisc in BPF is told: the parameters of the model, [`Setup`].

use weir_core::aqm::discipline::DEFAULT_PACKETS;
use weir_core::aqm::{CodelParams, Discipline, Setup, SpaParams};
use weir_kernel::shape::qdisc::{Low, Spec};

/// The qdisc for a link; `None`: it does not have the discipline.
pub fn spec(discipline: Discipline, setup: &Setup) -> Option<Spec> {
    let (spa, low) = match discipline {
        Discipline::Spa => {
            let low = Low::One(setup.own_codel(), setup.own_packets());
            (setup.spa(), low)
        }
        Discipline::SpaFq => (setup.spa(), Low::Flows(setup.own_flows())),
        Discipline::SpaPaper => (setup.spa_paper(), Low::One(setup.codel(), DEFAULT_PACKETS)),
        Discipline::SynPrio | Discipline::SynFinPrio => {
            let fin = discipline == Discipline::SynFinPrio;
            fifos(setup, fin)
        }
        _ => return None,
    };
    Some(Spec {
        rate_bytes_per_s: setup.rate_bytes_per_s,
        discipline: discipline.name(),
        spa,
        low,
    })
}

/// Two queues that drop only what they have no room for.
fn fifos(setup: &Setup, fin: bool) -> (SpaParams, Low) {
    let never = CodelParams {
        target_ns: u64::MAX,
        ..setup.codel()
    };
    let spa = SpaParams {
        fin,
        high: never,
        ..setup.spa_paper()
    };
    (spa, Low::One(never, setup.buffer_packets))
}

/// The names of the disciplines that [`spec`] has.
pub fn names() -> String {
    let all = Discipline::ALL.into_iter();
    let here = all.filter(|discipline| spec(*discipline, &Setup::new(1_000_000)).is_some());
    here.map(Discipline::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::shape::DISCIPLINES_IN_BPF;

    #[test]
    fn the_names_fit_into_the_qdisc_s_state_and_are_those_of_the_file() {
        for discipline in Discipline::ALL {
            assert!(discipline.name().len() < 16);
        }
        assert_eq!(names(), "syn-prio, syn-fin-prio, spa-paper, spa, spa-fq");
        for discipline in Discipline::ALL {
            let is_here = spec(discipline, &Setup::new(1_000_000)).is_some();
            let is_in_file = DISCIPLINES_IN_BPF.contains(&discipline);
            assert_eq!(is_in_file, is_here, "{discipline}");
        }
    }
}
