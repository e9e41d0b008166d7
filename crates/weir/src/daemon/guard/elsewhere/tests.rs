//! Claims about listeners in other namespaces, in virtual time, on a machine that is made up.

mod missed;

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsFd;
use std::rc::Rc;

use weir_core::listener::{ListenAddress, MAX_LISTENERS};
use weir_core::verdict::Verdict;
use weir_core::workload::workload_of;
use weir_kernel::NamespacePath;

use super::space::SILENT;
use super::world::{Inside, MOST_INTERFACES};
use super::*;
use crate::daemon::backend::fake::{Fake, NORMAL};
use crate::host::links::fake::link;

const OWN: u64 = 1;

/// What the machine has.
#[derive(Default)]
struct State {
    listening: Vec<FoundListener>,
    notices: Vec<Notice>,
    /// Of what happens during the next look at a namespace.
    meanwhile: Vec<Notice>,
    lost: u32,
    /// Container names by process.
    named: BTreeMap<u32, &'static str>,
    /// Interfaces by namespace; one that is not here has ended.
    links: BTreeMap<Namespace, Vec<&'static str>>,
}

thread_local! {
    static STATE: Rc<RefCell<State>> = Rc::default();
}

struct Made {
    state: Rc<RefCell<State>>,
    null: File,
}

fn made() -> Result<Box<dyn World>> {
    Ok(Box::new(Made {
        state: STATE.with(Rc::clone),
        null: File::open("/dev/null").unwrap(),
    }))
}

impl World for Made {
    fn fd(&self) -> BorrowedFd<'_> {
        self.null.as_fd()
    }

    fn listeners(&self) -> Result<Vec<FoundListener>> {
        Ok(self.state.borrow().listening.clone())
    }

    fn notices(&self) -> Vec<Notice> {
        std::mem::take(&mut self.state.borrow_mut().notices)
    }

    fn lost(&self) -> u32 {
        self.state.borrow().lost
    }

    fn workloads(&self, found: &[FoundListener]) -> Vec<Option<Workload>> {
        let state = self.state.borrow();
        let of = |one: &FoundListener| {
            let name = state.named.get(&one.pid)?;
            let mut workload = workload_of(&format!("0::/docker/{}\n", "ab".repeat(32)));
            workload.container.as_mut()?.name = Some((*name).to_owned());
            Some(workload)
        };
        found.iter().map(of).collect()
    }

    /// The namespace that the path names, as the fake kernel half reads it.
    fn look(&self, _: &NamespacePath, namespace: Namespace) -> Result<Inside> {
        let State {
            notices,
            meanwhile,
            links,
            ..
        } = &mut *self.state.borrow_mut();
        notices.append(meanwhile);
        let ended = || Failure::failed("it has ended", "");
        let names = links.get(&namespace).ok_or_else(ended)?;
        let links = names.iter().zip(1..);
        Ok(Inside {
            links: links.map(|(name, index)| link(index, name)).collect(),
            environment: NORMAL,
        })
    }
}

/// A guard of containers `web-*` at port 80 on a made-up machine.
struct Bed {
    elsewhere: Elsewhere,
    kernel: Fake,
    state: Rc<RefCell<State>>,
    now: Instant,
}

impl Bed {
    fn new() -> Bed {
        let now = Instant::now();
        let kernel = Fake::default();
        let state = STATE.with(Rc::clone);
        *state.borrow_mut() = State::default();
        let own = Namespace::with_cookie(OWN);
        let mut elsewhere = Elsewhere::none(made, own, true, now);
        elsewhere.set(&[web()], &mut kernel.clone()).unwrap();
        Bed {
            elsewhere,
            kernel,
            state,
            now,
        }
    }

    /// As of `weir protect all --where container:web-*`, instead of what was guarded.
    fn guards_every_server(&mut self) {
        let own = Namespace::with_cookie(OWN);
        self.elsewhere = Elsewhere::none(made, own, true, self.now);
        let every = Every {
            location: web().location,
            listener: Box::new(|port| Listener {
                name: format!("port-{port}"),
                address: ListenAddress { ip: None, port },
                ..web()
            }),
        };
        self.elsewhere.guard_every(every, &mut self.kernel).unwrap();
    }

    /// A server begins to listen at port 80. The fake kernel half knows a namespace by the process there.
    fn starts(&self, namespace: u64, name: &'static str) -> FoundListener {
        self.starts_at(80, namespace, name)
    }

    fn starts_at(&self, port: u16, namespace: u64, name: &'static str) -> FoundListener {
        let mut state = self.state.borrow_mut();
        let socket = 1000 + state.listening.len() as u64 + namespace;
        let found = FoundListener {
            namespace: Namespace::with_cookie(namespace),
            socket,
            ip: "0.0.0.0".parse().unwrap(),
            port,
            backlog: 4,
            pid: namespace as u32,
            cgroup: 1,
        };
        state.named.insert(found.pid, name);
        let links = state.links.entry(found.namespace).or_default();
        *links = vec!["lo", "eth0"];
        state.listening.push(found.clone());
        state.notices.push(Notice::Listens(found.clone()));
        found
    }

    fn stops(&self, found: &FoundListener) {
        let mut state = self.state.borrow_mut();
        state.listening.retain(|one| one != found);
        state.notices.push(Notice::Ceased {
            namespace: found.namespace,
            socket: found.socket,
            port: found.port,
        });
    }

    /// Its namespace goes, and with it its interfaces.
    fn ends(&self, found: &FoundListener) {
        self.stops(found);
        self.state.borrow_mut().links.remove(&found.namespace);
        let mut kernel = self.kernel.0.borrow_mut();
        if let Some(space) = kernel.spaces.values_mut().next() {
            space.1.clear();
        }
    }

    fn work(&mut self) {
        self.elsewhere.work(&mut self.kernel, self.now);
    }

    fn work_after(&mut self, time: Duration) {
        self.now += time;
        self.work();
    }

    /// The labels with the names of the interfaces.
    fn in_force(&self) -> Vec<(String, String)> {
        let spaces = self.elsewhere.spaces.values();
        let said = |space: &Space| {
            let names: Vec<&str> = space.attached.values().map(String::as_str).collect();
            let names = names.join(" ");
            let labels = space.replicas.iter().map(|one| one.label.clone());
            labels
                .map(|label| (label, names.clone()))
                .collect::<Vec<_>>()
        };
        spaces.flat_map(said).collect()
    }

    /// The kinds and listeners of the events since the last call.
    fn events(&mut self) -> Vec<(String, String)> {
        let events = self.elsewhere.events(self.now).into_iter();
        events
            .map(|event| (event.kind, event.listener.unwrap_or_default()))
            .collect()
    }

    fn report(&self) -> weir_api::Listener {
        self.elsewhere.report(&self.kernel, &web(), None)
    }
}

fn web() -> Listener {
    let address = ListenAddress { ip: None, port: 80 };
    Listener {
        location: Where::parse("container:web-*").unwrap(),
        ..Listener::new("web", address)
    }
}

fn on(label: &str) -> (String, String) {
    (label.to_owned(), "lo eth0".to_owned())
}

#[test]
fn a_container_is_guarded_when_it_listens_and_is_not_when_it_has_ended() {
    let mut bed = Bed::new();
    bed.work();
    assert_eq!(bed.in_force(), []);
    let report = bed.report();
    let because = report.not_in_force_because.unwrap();
    assert_eq!(because, "nothing listens on port 80 in container web-* yet");
    let found = bed.starts(7, "web-1");
    bed.starts(8, "db-1");
    bed.work();
    assert_eq!(bed.in_force(), [on("web@web-1")]);
    assert!(bed.report().in_force);
    // The server starts again within its container.
    bed.stops(&found);
    bed.work_after(Duration::from_secs(5));
    assert_eq!(bed.in_force(), [on("web@web-1")]);
    bed.ends(&found);
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.in_force(), []);
    assert!(
        bed.elsewhere.sockets.values().all(|one| one
            .workload
            .container
            .as_ref()
            .unwrap()
            .name
            .as_deref()
            != Some("web-1"))
    );
}

const ON: &str = "workload_on";
const OFF: &str = "workload_off";

fn of_web_1(kind: &str) -> (String, String) {
    (kind.to_owned(), "web@web-1".to_owned())
}

#[test]
fn a_container_that_ended_is_an_event_and_so_is_one_that_comes_again() {
    let mut bed = Bed::new();
    let first = bed.starts(7, "web-1");
    bed.work();
    assert_eq!(bed.events(), [ON].map(of_web_1));
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.events(), [], "nothing has changed");
    bed.ends(&first);
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.events(), [OFF].map(of_web_1));
    let second = bed.starts(9, "web-1");
    bed.work();
    assert_eq!(bed.events(), [ON].map(of_web_1));
    // It comes again before weir has seen that it had ended.
    bed.stops(&second);
    bed.starts(11, "web-1");
    bed.work();
    assert_eq!(bed.events(), [OFF, ON].map(of_web_1));
}

#[test]
fn a_server_that_ended_is_an_event_though_its_namespace_goes_on_but_not_its_restart() {
    let mut bed = Bed::new();
    let first = bed.starts(7, "web-1");
    bed.work();
    bed.events();
    bed.stops(&first);
    bed.work_after(SILENT / 2);
    let second = bed.starts_at(80, 7, "web-1");
    bed.work_after(SILENT / 2);
    bed.work_after(SILENT);
    assert_eq!(bed.events(), [], "it has started again in time");
    bed.stops(&second);
    bed.work_after(Duration::from_secs(1));
    bed.work_after(SILENT);
    bed.work_after(SILENT);
    assert_eq!(bed.events(), [OFF].map(of_web_1), "once");
    bed.starts(7, "web-1");
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.events(), [ON].map(of_web_1));
}

#[test]
fn a_workload_that_cannot_be_guarded_is_an_event_until_it_can() {
    let mut bed = Bed::new();
    bed.kernel.0.borrow_mut().refuse_apply = true;
    bed.starts(7, "web-1");
    bed.work();
    assert_eq!(bed.events(), ["not_in_force"].map(of_web_1));
    bed.kernel.0.borrow_mut().refuse_apply = false;
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.events(), ["in_force"].map(of_web_1));
}

#[test]
fn a_unit_that_ended_in_weir_s_own_namespace_is_an_event_too() {
    let mut bed = Bed::new();
    let look = |bed: &mut Bed, after: Duration| {
        bed.work_after(after);
        bed.elsewhere.look_at_own(bed.now);
        bed.events()
    };
    let first = bed.starts(OWN, "web-1");
    let second = Duration::from_secs(1);
    assert_eq!(look(&mut bed, second), [ON].map(of_web_1));
    bed.stops(&first);
    assert_eq!(look(&mut bed, second), [], "it may be starting again");
    assert_eq!(look(&mut bed, SILENT), [OFF].map(of_web_1));
    assert_eq!(look(&mut bed, SILENT), [], "once");
    bed.starts(OWN, "web-1");
    assert_eq!(look(&mut bed, second), [ON].map(of_web_1));
    bed.elsewhere.set(&[], &mut bed.kernel).unwrap();
    assert_eq!(bed.events(), [OFF].map(of_web_1));
}

#[test]
fn every_port_of_a_place_is_guarded_now_and_later_and_none_of_another_place() {
    let mut bed = Bed::new();
    bed.starts_at(81, 7, "web-1");
    bed.starts_at(82, 8, "db-1");
    bed.guards_every_server();
    bed.work();
    assert_eq!(bed.in_force(), [on("port-81@web-1")]);
    bed.starts_at(90, 9, "web-2");
    bed.starts_at(82, 10, "db-2");
    bed.work();
    assert_eq!(bed.in_force(), [on("port-81@web-1"), on("port-90@web-2")]);
    let asked = bed.elsewhere.asked().iter().map(|one| one.address.port);
    assert_eq!(asked.collect::<Vec<_>>(), [81, 90]);
}

#[test]
fn ports_at_which_nobody_listens_any_more_make_room_for_those_of_servers_that_come() {
    let mut bed = Bed::new();
    bed.guards_every_server();
    let most = MAX_LISTENERS as u16;
    let all: Vec<_> = (1..=most)
        .map(|port| bed.starts_at(port, 7, "web-1"))
        .collect();
    bed.work();
    bed.starts_at(1000, 8, "web-2");
    bed.work();
    let has = |bed: &Bed, port| {
        let mut asked = bed.elsewhere.asked().iter();
        asked.any(|one| one.address.port == port)
    };
    assert!(!has(&bed, 1000), "all of them have servers");
    bed.stops(&all[4]);
    bed.work();
    assert!(has(&bed, 5), "its server may be starting again");
    bed.starts_at(2000, 9, "web-3");
    bed.work();
    assert!(has(&bed, 2000) && !has(&bed, 5));
    assert!(bed.elsewhere.sockets.values().all(|one| one.listens));
    // One whose server starts again in the moment when another one comes keeps its place.
    bed.stops(&all[5]);
    bed.stops(&all[6]);
    bed.starts_at(6, 8, "web-2");
    bed.starts_at(3000, 10, "web-4");
    bed.work();
    assert!(has(&bed, 3000) && has(&bed, 6) && !has(&bed, 7));
    bed.work();
    let there = bed.in_force();
    assert!(there.contains(&on("port-2000@web-3")), "{there:?}");
    assert!(!there.contains(&on("port-5@web-1")), "{there:?}");
}

/// As in each container of Docker's own networks.
#[test]
fn a_server_that_only_its_own_namespace_reaches_is_not_among_every_server() {
    let mut bed = Bed::new();
    bed.guards_every_server();
    for (port, ip) in [(81, "127.0.0.11"), (82, "::1"), (83, "::ffff:127.0.0.1")] {
        bed.starts_at(port, 7, "web-1");
        for notice in &mut bed.state.borrow_mut().notices {
            if let Notice::Listens(found) = notice
                && found.port == port
            {
                found.ip = ip.parse().unwrap();
            }
        }
    }
    bed.starts_at(84, 7, "web-1");
    bed.work();
    assert_eq!(bed.in_force(), [on("port-84@web-1")]);
}

#[test]
fn who_makes_many_interfaces_has_some_of_them_guarded_and_is_told_of() {
    let mut bed = Bed::new();
    let found = bed.starts(7, "web-1");
    let names: Vec<&'static str> = vec!["eth0"; MOST_INTERFACES + 1];
    bed.state.borrow_mut().links.insert(found.namespace, names);
    bed.work();
    let spaces = &bed.elsewhere.spaces;
    assert_eq!(spaces[&found.namespace].attached.len(), MOST_INTERFACES);
    let because = bed.report().not_in_force_because.unwrap();
    assert!(because.contains("it has 65 interfaces"), "{because}");
}

#[test]
fn a_container_that_is_started_again_keeps_its_label_and_what_was_counted() {
    let mut bed = Bed::new();
    let mut counters = Counters::default();
    counters.0[Verdict::SynResetFull as usize] = 5;
    bed.kernel
        .0
        .borrow_mut()
        .counters
        .insert("web".into(), counters);
    let first = bed.starts(7, "web-1");
    bed.work();
    bed.stops(&first);
    bed.starts(9, "web-1");
    bed.work();
    assert_eq!(bed.in_force(), [on("web@web-1")]);
    let report = bed.report();
    assert_eq!(report.workloads.len(), 1);
    assert_eq!(report.workloads[0].counters["syn_reset_full"], 5);
    assert_eq!(
        report.counters["syn_reset_full"], 10,
        "with those of before"
    );
}

#[test]
fn two_that_live_have_two_labels() {
    let mut bed = Bed::new();
    bed.starts(7, "web-1");
    bed.starts(9, "web-1");
    bed.work();
    assert_eq!(bed.in_force(), [on("web@web-1"), on("web@web-1#9")]);
}

#[test]
fn those_that_listen_already_and_those_whose_notices_were_lost_are_found() {
    let mut bed = Bed::new();
    bed.starts(7, "web-1");
    bed.state.borrow_mut().notices.clear();
    let mut kernel = bed.kernel.clone();
    bed.elsewhere.set(&[web()], &mut kernel).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    bed.elsewhere.settle(&mut kernel, until);
    assert_eq!(bed.in_force(), [on("web@web-1")]);
    bed.starts(8, "web-2");
    bed.state.borrow_mut().notices.clear();
    bed.state.borrow_mut().lost = 1;
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.in_force(), [on("web@web-1"), on("web@web-2")]);
}

#[test]
fn an_interface_that_comes_is_guarded_within_two_seconds() {
    let mut bed = Bed::new();
    let found = bed.starts(7, "web-1");
    bed.work();
    let mut all = vec!["lo", "eth0", "eth1"];
    bed.state
        .borrow_mut()
        .links
        .insert(found.namespace, all.clone());
    bed.work_after(Duration::from_secs(1));
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.in_force()[0].1, all.join(" "));
    all.pop();
    bed.state
        .borrow_mut()
        .links
        .insert(found.namespace, all.clone());
    bed.work_after(Duration::from_secs(1));
    bed.work_after(Duration::from_secs(1));
    assert_eq!(bed.in_force()[0].1, all.join(" "));
}

#[test]
fn what_listens_in_weir_s_own_namespace_is_the_session_s() {
    let mut bed = Bed::new();
    assert_eq!(bed.elsewhere.own(), []);
    bed.starts(OWN, "web-1");
    bed.work();
    assert_eq!(bed.in_force(), []);
    assert_eq!(bed.elsewhere.own(), [web()]);
    // Unless another one is there already.
    let here = Listener {
        location: Where::Here,
        name: "own".into(),
        ..web()
    };
    let both = [web(), here.clone()];
    bed.elsewhere.set(&both, &mut bed.kernel).unwrap();
    assert_eq!(bed.elsewhere.own(), [here]);
}

#[test]
fn a_listener_that_is_taken_out_is_in_force_nowhere() {
    let mut bed = Bed::new();
    bed.starts(7, "web-1");
    bed.work();
    bed.elsewhere.set(&[], &mut bed.kernel).unwrap();
    assert!(bed.kernel.0.borrow().spaces.is_empty());
    assert!(bed.elsewhere.fd().is_none() && bed.elsewhere.due_at().is_some());
    assert_eq!(
        bed.events(),
        [ON, OFF].map(of_web_1),
        "which it was due for"
    );
    assert!(bed.elsewhere.due_at().is_none());
}

#[test]
fn a_guard_without_room_says_so_and_changes_nothing() {
    let own = Namespace::with_cookie(OWN);
    let mut elsewhere = Elsewhere::none(made, own, false, Instant::now());
    let failure = elsewhere.set(&[web()], &mut Fake::default()).unwrap_err();
    assert!(failure.to_string().contains("has no room"), "{failure}");
    assert!(elsewhere.all().is_empty());
    let here = Listener::new("own", web().address);
    elsewhere.set(&[here], &mut Fake::default()).unwrap();
}

#[test]
fn what_the_kernel_half_refuses_is_said() {
    let mut bed = Bed::new();
    bed.kernel.0.borrow_mut().refuse_apply = true;
    bed.starts(7, "web-1");
    bed.work();
    let report = bed.report();
    let because = report.not_in_force_because.unwrap();
    assert!(
        because.starts_with("web-1: ") && because.contains("E2BIG"),
        "{because}"
    );
    // It is tried again.
    bed.kernel.0.borrow_mut().refuse_apply = false;
    bed.work_after(Duration::from_secs(1));
    assert!(bed.report().in_force);
}

/// Clients come by the other interface.
#[test]
fn the_loopback_device_is_attached_to_when_nothing_else_is_to_be() {
    let mut bed = Bed::new();
    bed.kernel.0.borrow_mut().late = true;
    bed.starts(7, "web-1");
    bed.work();
    assert_eq!(bed.in_force()[0].1, "eth0");
    assert!(bed.report().in_force);
    bed.kernel.0.borrow_mut().late = false;
    bed.work();
    assert_eq!(bed.in_force(), [on("web@web-1")]);
    // Where it is the only one it is as urgent.
    bed.kernel.0.borrow_mut().late = true;
    let found = bed.starts(8, "web-2");
    let mut state = bed.state.borrow_mut();
    state.links.insert(found.namespace, vec!["lo"]);
    drop(state);
    bed.work();
    assert_eq!(bed.in_force()[1].1, "lo");
}

#[test]
fn what_the_kernel_half_has_no_memory_for_is_tried_again() {
    let mut bed = Bed::new();
    bed.kernel.0.borrow_mut().refuse_in_force = true;
    bed.starts(7, "web-1");
    bed.work();
    let because = bed.report().not_in_force_because.unwrap();
    assert!(because.contains("ENOMEM"), "{because}");
    bed.work_after(Duration::from_secs(1));
    assert!(bed.report().in_force);
}

/// Whatever they do, at a port of interest.
#[test]
fn sockets_of_others_are_forgotten_when_they_have_ceased_to_listen() {
    let mut bed = Bed::new();
    for namespace in 0..5 {
        let found = bed.starts(20 + namespace, "db-1");
        bed.work();
        assert_eq!(bed.elsewhere.sockets.len(), 1);
        bed.stops(&found);
        bed.work();
        assert!(bed.elsewhere.sockets.is_empty());
        // Before weir has looked at it.
        let found = bed.starts(40 + namespace, "web-1");
        bed.stops(&found);
        bed.work();
        assert!(bed.elsewhere.sockets.is_empty() && bed.in_force().is_empty());
    }
}

/// A device of the machine that comes back when its namespace ends keeps the guard's link.
#[test]
fn a_namespace_has_ended_although_one_of_its_interfaces_is_there_still() {
    let mut bed = Bed::new();
    let found = bed.starts(7, "web-1");
    bed.work();
    bed.stops(&found);
    bed.state.borrow_mut().links.remove(&found.namespace);
    bed.work_after(Duration::from_secs(2));
    assert_eq!(
        bed.in_force(),
        [on("web@web-1")],
        "its server may be starting again"
    );
    for _ in 0..SILENT.as_secs() {
        bed.work_after(Duration::from_secs(1));
    }
    assert_eq!(bed.in_force(), []);
    bed.work_after(Duration::from_secs(1));
    assert!(bed.kernel.0.borrow().spaces.is_empty());
}

#[test]
fn what_was_under_way_when_nothing_was_asked_for_any_more_is_taken() {
    let mut bed = Bed::new();
    bed.kernel.0.borrow_mut().late = true;
    bed.starts(7, "web-1");
    bed.work();
    bed.elsewhere.set(&[], &mut bed.kernel).unwrap();
    assert_eq!(bed.kernel.0.borrow().begun.len(), 1);
    bed.kernel.0.borrow_mut().late = false;
    bed.work();
    assert!(bed.kernel.0.borrow().begun.is_empty());
}

/// However many others there are.
#[test]
fn one_in_trouble_is_tried_again_each_second() {
    let mut bed = Bed::new();
    for namespace in 100..200 {
        bed.starts(namespace, "web-1");
    }
    for _ in 0..20 {
        bed.work();
    }
    bed.kernel.0.borrow_mut().refuse_in_force = true;
    bed.starts(150_000, "web-2");
    bed.work();
    assert!(!bed.report().in_force);
    bed.work_after(Duration::from_secs(1));
    bed.work();
    assert!(bed.report().in_force);
}

#[test]
fn one_that_comes_waits_for_none_that_is_looked_at() {
    let mut bed = Bed::new();
    for namespace in 100..150 {
        bed.starts(namespace, "web-1");
    }
    bed.work();
    bed.starts(5000, "web-1");
    // All the others are to be looked at, too.
    let mut rounds = 0;
    while !bed
        .elsewhere
        .spaces
        .contains_key(&Namespace::with_cookie(5000))
    {
        bed.elsewhere.links_changed();
        bed.starts(100, "web-1");
        bed.work_after(Duration::from_secs(1));
        rounds += 1;
        assert!(rounds < 10);
    }
}
