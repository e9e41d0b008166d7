//! Claims about what no notice tells of: it is found within a second or two, and said.

use super::*;

impl Bed {
    /// The process that has called listen() has ended by the time when its notice is read; another one has the socket.
    fn starts_and_hands_over(&self, port: u16, namespace: u64, name: &'static str) {
        self.starts_at(port, namespace, name);
        match self.state.borrow_mut().notices.last_mut() {
            Some(Notice::Listens(found)) => found.pid = 99_999,
            _ => unreachable!("the last notice is of this one"),
        }
    }

    fn guards_many(&mut self) {
        for namespace in 100..200 {
            self.starts(namespace, "web-1");
        }
        while !self.elsewhere.due.is_empty() || !self.state.borrow().notices.is_empty() {
            self.work();
        }
    }
}

/// As a server does that becomes a daemon.
#[test]
fn a_server_whose_process_has_ended_is_guarded_at_once() {
    let mut bed = Bed::new();
    bed.starts_and_hands_over(80, 7, "web-1");
    bed.work();
    assert_eq!(bed.in_force(), [on("web@web-1")]);
    // Anybody can have this done: the next time it takes a second.
    bed.starts_and_hands_over(80, 8, "web-2");
    bed.work();
    assert_eq!(bed.in_force(), [on("web@web-1")]);
    bed.events();
    let second = Duration::from_secs(1);
    assert_eq!(bed.elsewhere.due_at(), Some(bed.now + second));
    bed.work_after(second);
    assert_eq!(bed.in_force(), [on("web@web-1"), on("web@web-2")]);
    assert_eq!(bed.elsewhere.scans.untold, 0, "notices told of them");
}

#[test]
fn and_so_it_is_at_a_port_that_is_new() {
    let mut bed = Bed::new();
    bed.guards_every_server();
    bed.starts_and_hands_over(90, 7, "web-1");
    bed.work();
    assert_eq!(bed.in_force(), [on("port-90@web-1")]);
}

/// Of the port that listen() chooses the notice knows nothing yet.
#[test]
fn a_server_whose_port_is_chosen_later_is_guarded_when_it_is() {
    let mut bed = Bed::new();
    bed.guards_every_server();
    bed.starts_at(0, 7, "web-1");
    bed.work();
    assert_eq!(bed.in_force(), []);
    bed.state.borrow_mut().listening[0].port = 90;
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.in_force(), [on("port-90@web-1")]);
    assert_eq!(bed.elsewhere.scans.untold, 0);
}

#[test]
fn what_no_notice_has_told_of_is_counted_when_it_is_found() {
    let mut bed = Bed::new();
    bed.work();
    bed.starts(7, "web-1");
    bed.state.borrow_mut().notices.clear();
    bed.starts(8, "db-1");
    bed.starts_at(0, 9, "web-3");
    bed.work();
    bed.work();
    assert_eq!(bed.in_force(), [on("web@web-1")]);
    assert_eq!(bed.elsewhere.scans.untold, 1);
}

/// The kernel's walk passes by a socket that is on its way from one process to another.
#[test]
fn a_look_that_does_not_see_a_server_forgets_none() {
    let mut bed = Bed::new();
    let hidden = bed.starts(7, "web-1");
    bed.state.borrow_mut().listening.clear();
    bed.starts_and_hands_over(80, 8, "web-2");
    bed.work();
    let both = [on("web@web-1"), on("web@web-2")];
    assert_eq!(bed.in_force(), both);
    assert!(bed.elsewhere.sockets[&hidden.socket].listens);
    // Where notices were lost, perhaps that of its end was.
    bed.state.borrow_mut().lost = 1;
    bed.work_after(Duration::from_secs(1));
    assert!(!bed.elsewhere.sockets[&hidden.socket].listens);
}

/// However many others there are to be looked at: their turn comes after half a minute.
#[test]
fn a_second_server_of_a_namespace_that_cannot_be_entered_at_first_is_guarded_within_a_second() {
    let mut bed = Bed::new();
    bed.guards_every_server();
    bed.guards_many();
    let first = bed.starts_at(81, 300, "web-2");
    bed.work();
    bed.starts_at(82, 300, "web-2");
    let links = bed.state.borrow_mut().links.remove(&first.namespace);
    bed.work();
    assert!(!bed.in_force().contains(&on("port-82@web-2")));
    let links = links.unwrap();
    bed.state.borrow_mut().links.insert(first.namespace, links);
    bed.work_after(Duration::from_secs(1));
    bed.work();
    assert!(bed.in_force().contains(&on("port-82@web-2")));
}

#[test]
fn a_server_that_comes_while_others_are_to_be_looked_at_waits_for_one_of_them_at_most() {
    let mut bed = Bed::new();
    bed.guards_many();
    bed.elsewhere.links_changed();
    bed.starts(5000, "web-2");
    bed.work_after(Duration::from_secs(1));
    let looked_at = |bed: &Bed| HURRIED - bed.elsewhere.due.iter().count();
    while !bed.in_force().contains(&on("web@web-2")) {
        bed.work();
    }
    assert!(looked_at(&bed) <= 1, "{}", looked_at(&bed));
    // One that comes during such a look is seen before the next one.
    bed.starts(5001, "web-3");
    let mut state = bed.state.borrow_mut();
    state.meanwhile = std::mem::take(&mut state.notices);
    drop(state);
    bed.work();
    bed.work();
    assert!(bed.in_force().contains(&on("web@web-3")));
    assert!(looked_at(&bed) <= 2, "{}", looked_at(&bed));
}
