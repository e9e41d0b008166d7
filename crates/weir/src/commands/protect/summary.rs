//! What protection did, once it is off.

use std::time::Duration;

use weir_api::Quic;
use weir_core::listener::{Listener, Mode};
use weir_core::word::Word;

use super::udp;
use crate::daemon::guard::Totals;
use crate::daemon::overload::Total;
use crate::daemon::report::counters_by_name;
use crate::show::describe;
use crate::show::report::quic::{
    observed_verdicts as quic_observed_verdicts, totals as quic_totals,
};
use crate::show::report::{counter_table, quic_counter_table};
use crate::show::table::indent;

/// Listeners, or places of one, that the first lines name.
pub const SHOWN: usize = 12;

/// A paragraph for each listener that had a connection, and for each QUIC listener that had one.
pub fn text(totals: &Totals, time: Duration) -> String {
    let quic = totals.quic.iter().map(|quic| of_quic(quic, time));
    of_listeners(&totals.listeners, time) + &quic.collect::<String>()
}

fn of_quic(quic: &Quic, time: Duration) -> String {
    let what = word(quic.mode == Mode::Observe.word());
    let (object, seconds) = (udp::object(std::slice::from_ref(quic)), time.as_secs_f64());
    let head = format!("weir: {what} of {object} is off after {seconds:.1} s: ");
    match quic.counters.values().all(|n| *n == 0) {
        true => head + "no new QUIC connection\n",
        false => {
            let counters = quic_counter_table(&quic.counters);
            let more = quic_observed_verdicts(quic);
            let more = more.map_or(String::new(), |more| format!("  {more}\n"));
            let totals = quic_totals(quic);
            format!("{head}QUIC {totals}\n{more}{}", indent(&counters))
        }
    }
}

/// `protection` or `observation`
fn word(observes: bool) -> &'static str {
    match observes {
        true => "observation",
        false => "protection",
    }
}

fn of_listeners(totals: &[Total], time: Duration) -> String {
    let idle = |total: &&Total| total.counters.rows().all(|(_, n)| n == 0);
    if let [total] = totals {
        return one(total, time);
    }
    let busy = totals.iter().filter(|total| !idle(total));
    let mut text: String = busy.map(|total| one(total, time)).collect();
    let idle = totals.iter().filter(idle).count();
    if idle > 0 {
        let count = describe::count(idle, "listener");
        text += &format!("weir: {count} had no connection\n");
    }
    text
}

fn one(total: &Total, time: Duration) -> String {
    let Total {
        listener,
        counters,
        waits,
        would,
    } = total;
    let what = word(listener.mode == Mode::Observe);
    let first = format!(
        "weir: {what} of {} is off after {:.1} s: {}\n",
        object(listener),
        time.as_secs_f64(),
        describe::totals(listener.mode, counters, *would),
    );
    let wait = describe::waits(waits).map_or(String::new(), |waits| format!("  {waits}\n"));
    let more = describe::observed_verdicts(counters, *would);
    let more = more.map_or(String::new(), |more| format!("  {more}\n"));
    let counters = counter_table(&counters_by_name(counters));
    first + &wait + &more + &indent(&counters)
}

/// `port 80`, or with the address if it is not every one.
pub fn object(listener: &Listener) -> String {
    match listener.address.ip {
        None => format!("port {}", listener.address.port),
        Some(_) => listener.address.to_string(),
    }
}

pub fn queue(report: &weir_api::Listener) -> String {
    if !report.listening {
        return "nothing listens there yet".to_owned();
    }
    let sockets = match report.sockets.len() {
        1 => String::new(),
        n => format!(" in {n} sockets"),
    };
    let (length, limit) = (report.queue_length, report.queue_limit);
    let drains = match report.mode == Mode::Enforce.word() && length > limit / 2 {
        true => {
            ", and those that wait there are served first: until their wait is short enough new clients may be refused (`weir status` says \
             for about how long; a restart of the server empties the queue at once)"
        }
        false => "",
    };
    format!("listen queue {length} of {limit}{sockets}{drains}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::forecast::Would;
    use weir_core::listener::ListenAddress;
    use weir_core::overload::Waits;
    use weir_core::verdict::{Counters, Verdict};

    fn total(port: u16, mode: Mode, admitted: u64, refused: u64) -> Total {
        let mut counters = Counters::default();
        counters.0[Verdict::SynAdmitted as usize] = admitted;
        counters.0[Verdict::SynResetFull as usize] = refused;
        let mut waits = Waits::default();
        if refused > 0 {
            waits.add(Duration::from_millis(5));
            waits.add(Duration::from_millis(41));
        }
        let address = ListenAddress { ip: None, port };
        let listener = Listener {
            mode,
            ..Listener::new("web", address)
        };
        Total {
            listener,
            counters,
            waits,
            would: None,
        }
    }

    const TIME: Duration = Duration::from_millis(12_340);

    #[test]
    fn the_summary_has_the_share_that_was_refused_the_waits_and_every_verdict_that_fell() {
        let expected = "\
weir: protection of port 80 is off after 12.3 s: admitted 70, refused 30 (30 %)
  wait for accept(): 41 ms at most, 23 ms on average
  verdict         count
  syn_admitted       70
  syn_reset_full     30
";
        assert_eq!(
            of_listeners(&[total(80, Mode::Enforce, 70, 30)], TIME),
            expected
        );
    }

    #[test]
    fn an_observation_says_what_would_have_been_refused() {
        let mut total = total(80, Mode::Observe, 1, 99);
        total.would = Some(Would {
            offered: 100,
            refused: 55,
        });
        let said = of_listeners(&[total], TIME);
        assert!(
            said.contains("admitted 45, would have refused 55 (55 %)\n"),
            "{said}"
        );
    }

    #[test]
    fn of_udp_it_says_what_became_of_new_quic_connections() {
        let mut quic = Quic {
            address: "*:443".into(),
            mode: "enforce".into(),
            counters: [
                ("quic_admitted", 7),
                ("quic_answered", 6),
                ("quic_vn_wait", 3),
            ]
            .map(|(name, n)| (name.to_owned(), n))
            .into(),
            ..Quic::default()
        };
        let said = |quic: &Quic| {
            let totals = Totals {
                listeners: vec![total(443, Mode::Enforce, 70, 0)],
                quic: vec![quic.clone()],
            };
            text(&totals, TIME)
        };
        let expected = "\
weir: protection of UDP port 443 is off after 12.3 s: QUIC admitted 7 (answered 6), refused 3 (30 %)
  verdict        count
  quic_admitted      7
  quic_vn_wait       3
  quic_answered      6
";
        let text = said(&quic);
        assert!(
            text.starts_with("weir: protection of port 443 is off"),
            "{text}"
        );
        assert!(text.ends_with(expected), "{text}");
        let observed = Quic {
            mode: "observe".into(),
            offered: Some(10),
            would_refuse: Some(1),
            ..quic.clone()
        };
        let text = said(&observed);
        let words = "QUIC admitted 9, would have refused 1 (10 %); 6 were answered\n  the verdicts are more: ";
        assert!(text.contains(words), "{text}");
        quic.counters.values_mut().for_each(|n| *n = 0);
        let text = said(&quic);
        assert!(text.ends_with("12.3 s: no new QUIC connection\n"), "{text}");
    }

    #[test]
    fn listeners_without_a_connection_are_only_counted() {
        let totals = [80, 81, 82].map(|port| total(port, Mode::Enforce, u64::from(port == 80), 0));
        let said = of_listeners(&totals, TIME);
        assert_eq!(said.matches("is off after").count(), 1, "{said}");
        assert!(
            said.ends_with("weir: 2 listeners had no connection\n"),
            "{said}"
        );
    }
}
