//! Sessions over real connections of this host, among nodes, strangers, and networks that break.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use proptest::prelude::*;

use ringpull_base::Secret;
use ringpull_base::strangers::GREETING;

use crate::handshake::{CHALLENGE, HELLO, HandshakeFailure, Hello, PROOF, Resumption, VERDICT};
use crate::*;

const LIMITS: Limits =
    Limits { header: 1 << 10, payload: 4 << 20, waiting_bytes: 4 << 20, waiting: 64, unwritten_bytes: 1 << 20 };
const RESUME: Duration = Duration::from_millis(1500);
const SETTINGS: Settings = Settings {
    limits: LIMITS,
    unconfirmed: Duration::from_secs(8),
    attempt: Duration::from_secs(5),
    resume: RESUME,
    linger: Duration::ZERO,
    at_once_bytes: usize::MAX,
};

type Received = (Arc<Session>, Frame<Vec<u8>>);

/// Keeps received frames and events, and ends the wait for them.
#[derive(Default)]
struct Inbox {
    frames: Mutex<VecDeque<Received>>,
    events: Mutex<VecDeque<Event>>,
    changed: Condvar,
}

type Bell = Arc<Inbox>;

impl Inbox {
    fn receive(&self) -> Option<(Vec<u8>, Frame<Vec<u8>>)> {
        let (session, frame) = self.frames.lock().pop_front()?;
        session.taken(frame.size());
        Some((session.identity().to_vec(), frame))
    }

    fn event(&self) -> Option<Event> {
        let mut events = self.events.lock();
        events.retain(|event| !matches!(event, Event::Connected(_)));
        events.pop_front()
    }

    fn wait(&self, limit: Duration) {
        self.changed.wait_for(&mut self.frames.lock(), limit);
    }
}

impl Sink for Inbox {
    fn frame(&self, from: &Arc<Session>, frame: Frame<Vec<u8>>) {
        self.frames.lock().push_back((Arc::clone(from), frame));
        self.changed.notify_all();
    }

    fn event(&self, _: &Arc<Session>, event: Event) {
        self.events.lock().push_back(event);
        self.changed.notify_all();
    }

    fn failed(&self, error: Error) {
        self.events.lock().push_back(Event::Refused(error));
        self.changed.notify_all();
    }
}

struct TestServer(Endpoint, Bell);

impl TestServer {
    fn send(&self, identity: &[u8], frame: Frame) -> bool {
        self.0.session(identity).is_some_and(|session| session.send(frame))
    }

    fn receive(&self) -> Option<(Vec<u8>, Frame<Vec<u8>>)> {
        self.1.receive()
    }

    fn event(&self) -> Option<Event> {
        self.1.event()
    }
}

struct TestClient(Endpoint, Arc<Session>, Bell);

impl TestClient {
    fn open(target: DialTarget, bell: &Bell) -> Self {
        let (endpoint, session) = Endpoint::connect(target, Arc::clone(bell) as Arc<dyn Sink>).unwrap();
        TestClient(endpoint, session, Arc::clone(bell))
    }

    fn send(&self, frame: impl Into<Frame>) -> bool {
        self.1.send(frame)
    }

    fn has_room(&self, limit: usize) -> bool {
        self.1.has_room(limit)
    }

    fn receive(&self) -> Option<Frame<Vec<u8>>> {
        self.2.receive().map(|(_, frame)| frame)
    }

    fn event(&self) -> Option<Event> {
        self.2.event()
    }
}

/// An answer with the same bytes.
fn same(frame: Frame<Vec<u8>>) -> Frame {
    Frame { header: frame.header, payload: frame.payload.into() }
}

fn is_gone(event: &Event) -> bool {
    matches!(event, Event::Gone(_))
}

fn secret(text: &str) -> Secret {
    Secret::within(&text.repeat(16)).unwrap()
}

fn listener(secret: Option<Secret>, bell: &Bell) -> (TestServer, SocketAddr) {
    listener_on(Ipv4Addr::LOCALHOST.into(), secret, bell)
}

fn listener_on(ip: IpAddr, secret: Option<Secret>, bell: &Bell) -> (TestServer, SocketAddr) {
    let socket = listen(SocketAddr::from((ip, 0))).unwrap();
    let address = socket.local_addr().unwrap();
    let admits = Box::new(|identity: &[u8]| identity.starts_with(b"node"));
    let door = Door { name: "the server".to_owned(), secret, admits, most: 4, settings: SETTINGS };
    (
        TestServer(Endpoint::listen(vec![socket], door, Arc::clone(bell) as Arc<dyn Sink>).unwrap(), Arc::clone(bell)),
        address,
    )
}

fn target(to: SocketAddr, identity: &[u8], secret: Option<Secret>) -> DialTarget {
    let limits = Limits { unwritten_bytes: usize::MAX, ..LIMITS };
    let settings = Settings { limits, linger: Duration::from_secs(1), ..SETTINGS };
    let (name, identity) = ("the server".to_owned(), identity.to_vec());
    DialTarget { to: vec![to], name, identity, secret, settings, has_port: false }
}

/// Waits for `some`, for at most ten seconds.
fn until<T>(bell: &Bell, mut some: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = some() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it does not come");
        bell.wait(Duration::from_millis(20));
    }
}

fn payload(number: usize) -> Vec<u8> {
    (0..number * 997 % 300_000).map(|at| (at * 31 + number) as u8).collect()
}

fn frame(number: usize) -> Frame {
    Frame { header: number.to_le_bytes().to_vec(), payload: payload(number).into() }
}

/// Sends `count` frames from each end to the other and checks what arrives.
fn exchange(listener: &TestServer, server_bell: &Bell, connection: &TestClient, bell: &Bell, count: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                let (identity, got) = until(server_bell, || listener.receive());
                assert_eq!(identity, b"node 1");
                assert!(same(got.clone()) == frame(number), "frame {number}");
                assert!(listener.send(b"node 1", same(got)));
            }
        });
        let (mut sent, mut received) = (0, 0);
        while received < count {
            while sent < count && connection.has_room(8) {
                assert!(connection.send(frame(sent)));
                sent += 1;
            }
            let got = until(bell, || connection.receive());
            assert!(same(got) == frame(received), "frame {received} came back as another");
            received += 1;
        }
    });
}

#[test]
fn frames_arrive_in_order_and_whole() {
    for (secret, ip) in [(None, IpAddr::from(Ipv4Addr::LOCALHOST)), (Some(secret("abc")), Ipv6Addr::LOCALHOST.into())] {
        if TcpListener::bind((ip, 0)).is_err() {
            println!("skipped: this host has no {ip}");
            continue;
        }
        let (bell, server_bell) = (Bell::default(), Bell::default());
        let (listener, address) = listener_on(ip, secret.clone(), &server_bell);
        let connection = TestClient::open(target(address, b"node 1", secret), &bell);
        exchange(&listener, &server_bell, &connection, &bell, 300);
        connection.0.close(Duration::from_secs(5));
        assert!(is_gone(&until(&server_bell, || listener.event())));
        assert!(!listener.send(b"node 1", frame(1)), "it has left");
    }
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let connection = TestClient::open(target(address, b"node 1", None), &bell);
    for number in 0..40 {
        connection.send(frame(number));
    }
    // The end that closes waits until its peer has read.
    std::thread::scope(|scope| {
        scope.spawn(|| connection.0.close(Duration::from_secs(10)));
        for number in 0..40 {
            assert!(until(&server_bell, || listener.receive()).1.header == frame(number).header);
        }
    });
}

#[test]
fn nodes_with_other_secrets_are_refused_and_both_ends_know_why() {
    for (server, client, said) in [
        (Some("a"), Some("b"), "another secret"),
        (Some("a"), None, "this node has none"),
        (None, Some("b"), "it has no secret"),
    ] {
        let (bell, server_bell) = (Bell::default(), Bell::default());
        let (listener, address) = listener(server.map(secret), &server_bell);
        let connection = TestClient::open(target(address, b"node 1", client.map(secret)), &bell);
        connection.send(frame(3));
        let Event::Refused(error) = until(&bell, || connection.event()) else { panic!("it was admitted") };
        let error = error.to_string();
        assert!(error.contains(said) && error.contains("RINGPULL_SECRET"), "{error}");
        assert!(listener.receive().is_none() && listener.event().is_none());
    }
}

#[test]
fn a_server_without_the_secret_is_no_server() {
    // It sends the messages of a server, and admits everybody.
    let foreign = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = foreign.local_addr().unwrap();
    let bell = Bell::default();
    let connection = TestClient::open(target(to, b"node 1", Some(secret("a"))), &bell);
    let (mut stream, _) = foreign.accept().unwrap();
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).unwrap();
    let mut challenge = [7; CHALLENGE];
    challenge[..7].copy_from_slice(b"RPULLS\x03");
    challenge[7] = hello[7];
    stream.write_all(&challenge).unwrap();
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).unwrap();
    stream.write_all(&[0; VERDICT]).unwrap();
    assert!(matches!(until(&bell, || connection.event()), Event::Refused(_)));
}

#[test]
fn a_proof_that_was_overheard_is_refused() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(Some(secret("a")), &server_bell);
    let spy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = spy.local_addr().unwrap();
    let connection = TestClient::open(target(to, b"node 1", Some(secret("a"))), &bell);
    let (mut client, _) = spy.accept().unwrap();
    let mut server = TcpStream::connect(address).unwrap();
    let (mut hello, mut challenge, mut proof, mut verdict) = ([0; HELLO], [0; CHALLENGE], [0; PROOF], [0; VERDICT]);
    client.read_exact(&mut hello).unwrap();
    server.write_all(&hello).unwrap();
    server.read_exact(&mut challenge).unwrap();
    client.write_all(&challenge).unwrap();
    client.read_exact(&mut proof).unwrap();
    drop((client, server, spy));
    // The same bytes once more: the server's challenge is another.
    let mut again = TcpStream::connect(address).unwrap();
    again.write_all(&hello).unwrap();
    again.read_exact(&mut challenge).unwrap();
    again.write_all(&proof).unwrap();
    again.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[0], 1, "the wrong secret");
    assert!(listener.receive().is_none());
    drop(connection);
}

#[test]
fn strangers_of_every_kind_delay_nobody_and_leave_nothing() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(Some(secret("a")), &server_bell);
    let mut strangers = Vec::new();
    for kind in 0..200 {
        let said: &[u8] = match kind % 4 {
            0 => &[],
            1 => b"RPU",
            2 => b"RPULLC\x03\x01 half of a hello",
            _ => b"GET / HTTP/1.1\r\n\r\n",
        };
        // A stranger that comes when there are too many is refused, perhaps before it knows that it is
        // connected.
        let told = TcpStream::connect(address).and_then(|mut stranger| stranger.write_all(said).map(|()| stranger));
        strangers.extend(told);
    }
    let start = Instant::now();
    let connection = TestClient::open(target(address, b"node 1", Some(secret("a"))), &bell);
    exchange(&listener, &server_bell, &connection, &bell, 10);
    assert!(start.elapsed() < GREETING / 2, "{:?}", start.elapsed());
}

/// The connection must not end cleanly, which would mean that the listener's process is gone: a node gives up
/// after less than two seconds of clean ends.
#[test]
fn who_is_crowded_out_by_strangers_has_some_time_and_meets_a_broken_connection() {
    let (_listener, address) = listener(Some(secret("a")), &Bell::default());
    let said = |kind: io::ErrorKind, stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        (&mut { stream }).read(&mut [0; 1]).is_err_and(|cause| cause.kind() == kind)
    };
    let first = TcpStream::connect(address).unwrap();
    let begun = Instant::now();
    let mut crowd = Vec::new();
    while !said(io::ErrorKind::ConnectionReset, &first) {
        assert!(said(io::ErrorKind::WouldBlock, &first) && begun.elapsed() < GREETING / 2);
        // Connections that come too soon are refused in this way too.
        crowd.extend((0..100).filter_map(|_| TcpStream::connect(address).ok()));
    }
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
}

#[test]
fn a_node_that_sends_more_than_was_agreed_is_cut_off() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let connection = TestClient::open(target(address, b"node 1", None), &bell);
    connection.send(Frame { header: vec![0; LIMITS.header + 1], payload: Bytes::new() });
    assert!(is_gone(&until(&server_bell, || listener.event())));
    assert!(is_gone(&until(&bell, || connection.event())));
    assert!(listener.receive().is_none());
}

/// The listener answers each frame with much more data, and the peer reads none of it.
#[test]
fn a_peer_that_asks_and_does_not_read_is_not_read_any_more() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let connection = TestClient::open(target(address, b"node 1", None), &bell);
    let (mut sent, mut answered) = (0, 0);
    let mut quiet = Instant::now();
    // Unread data fills the peer's memory and then the sockets, and then the limit holds.
    while quiet.elapsed() < Duration::from_secs(1) {
        while connection.has_room(8) && sent < 3000 {
            connection.send(Frame { header: Vec::new(), payload: vec![1; 1 << 10].into() });
            sent += 1;
        }
        if let Some((identity, frame)) = listener.receive() {
            quiet = Instant::now();
            answered += 1;
            listener.send(&identity, Frame { header: Vec::new(), payload: frame.payload.repeat(64).into() });
        } else {
            server_bell.wait(Duration::from_millis(5));
        }
    }
    assert!(answered * (64 << 10) < 64 << 20, "{answered} answers to a peer that reads none");
    // It reads again, and all of it comes.
    let (mut got, mut last) = (0, Instant::now());
    while got < sent && last.elapsed() < Duration::from_secs(5) {
        while let Some((identity, frame)) = listener.receive() {
            listener.send(&identity, Frame { header: Vec::new(), payload: frame.payload.repeat(64).into() });
        }
        while connection.receive().is_some() {
            (got, last) = (got + 1, Instant::now());
        }
        bell.wait(Duration::from_millis(1));
    }
    assert_eq!(got, sent);
}

#[test]
fn names_that_no_node_has_or_another_has_are_refused() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let first = TestClient::open(target(address, b"node 1", None), &bell);
    first.send(frame(1));
    until(&server_bell, || listener.receive());
    for name in [b"node 1", b"nobody"] {
        let second = TestClient::open(target(address, name, None), &bell);
        assert!(matches!(until(&bell, || second.event()), Event::Refused(_)));
    }
    exchange(&listener, &server_bell, &first, &bell, 0);
    first.send(frame(2));
    until(&server_bell, || listener.receive());
}

#[test]
fn a_peer_that_is_gone_is_noticed_by_both_ends() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let network = Network::new(address);
    let connection = TestClient::open(target(network.address, b"node 1", None), &bell);
    exchange(&listener, &server_bell, &connection, &bell, 3);
    drop(network);
    assert!(is_gone(&until(&server_bell, || listener.event())));
    assert!(is_gone(&until(&bell, || connection.event())));
    assert!(!connection.send(frame(1)));
}

/// Every connection breaks after some hundred kilobytes, in the middle of whatever is on its way.
#[test]
fn connections_that_are_reset_again_and_again_lose_nothing_and_repeat_nothing() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(Some(secret("a")), &server_bell);
    let network = Network::new(address);
    let connection = TestClient::open(target(network.address, b"node 1", Some(secret("a"))), &bell);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                number += 1;
                network.reset_after(100_000 + number * 70_001 % 900_000);
            }
        });
        exchange(&listener, &server_bell, &connection, &bell, 300);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(*network.resets.lock() > 5, "{} resets", network.resets.lock());
    assert!(listener.event().is_none() && connection.event().is_none());
}

/// Reads a prefix and what follows it. Returns the number of the frame.
fn read_frame(from: &mut TcpStream) -> u64 {
    read_numbers(from).unwrap().0
}

/// Reads a prefix and what follows it. Returns the number of the frame, and how many it confirms.
fn read_numbers(from: &mut TcpStream) -> io::Result<(u64, u64)> {
    let mut prefix = [0; 24];
    from.read_exact(&mut prefix)?;
    let len = |at: usize| u32::from_le_bytes(prefix[at..at + 4].try_into().unwrap()) as usize;
    let [number, confirmed] = [0, 8].map(|at| u64::from_le_bytes(prefix[at..at + 8].try_into().unwrap()));
    let rest = if number == GOODBYE { 0 } else { len(16) + len(20) };
    from.read_exact(&mut vec![0; rest])?;
    Ok((number, confirmed))
}

/// A prefix without a frame: a confirmation or a goodbye.
fn prefix(number: u64, confirmed: u64) -> Vec<u8> {
    [&number.to_le_bytes()[..], &confirmed.to_le_bytes(), &[0; 8]].concat()
}

const GOODBYE: u64 = u64::MAX;

/// The connection breaks after the goodbye was sent and before anything was confirmed.
#[test]
fn what_a_connection_that_breaks_has_lost_of_the_last_frames_is_sent_again_before_close_returns() {
    let inbox = Bell::default();
    let socket = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    let door =
        Door { name: "the server".to_owned(), secret: None, admits: Box::new(|_| true), most: 1, settings: SETTINGS };
    let listener = Endpoint::listen(vec![socket], door, Arc::clone(&inbox) as Arc<dyn Sink>).unwrap();
    let (mut far, admitted) = connect(address, FIRST);
    assert_eq!(admitted.unwrap(), 0);
    let session = until(&inbox, || listener.session(b"node"));
    (0..3).for_each(|number| assert!(session.send(frame(number))));
    let closing = std::thread::spawn(move || listener.close(Duration::from_secs(60)));
    while read_frame(&mut far) != GOODBYE {}
    rustix::net::connect_unspec(&far).unwrap();
    let (mut again, admitted) = connect(address, Resumption { goes_on: true, attempt: 2, received: 1 });
    assert_eq!(admitted.unwrap(), 0);
    assert_eq!([(); 3].map(|()| read_frame(&mut again)), [2, 3, GOODBYE]);
    again.write_all(&prefix(GOODBYE, 3)).unwrap();
    assert_eq!(closing.join().unwrap(), 0, "all are confirmed");
}

/// The peer ends, or reads no more, without confirming the last frames.
#[test]
fn close_counts_the_frames_that_nobody_has_confirmed() {
    for is_closed in [true, false] {
        let (bell, server_bell) = (Bell::default(), Bell::default());
        let (listener, address) = listener(None, &server_bell);
        let (mut far, admitted) = connect(address, FIRST);
        assert_eq!(admitted.unwrap(), 0);
        let session = until(&bell, || listener.0.session(b"node"));
        (0..3).for_each(|number| assert!(session.send(frame(number))));
        while read_frame(&mut far) != 3 {}
        far.write_all(&prefix(0, 1)).unwrap();
        if is_closed {
            far.shutdown(std::net::Shutdown::Both).unwrap();
        }
        assert_eq!(listener.0.close(if is_closed { Duration::from_secs(60) } else { RESUME }), 2);
    }
}

/// The listener is writing frames that the peer has not read when the peer says goodbye.
#[test]
fn a_goodbye_that_meets_a_half_written_frame_is_answered_behind_it() {
    for is_closing in [false, true] {
        let bell = Bell::default();
        let socket = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        // It reads, however much it has to write.
        let settings = Settings { limits: Limits { unwritten_bytes: usize::MAX, ..LIMITS }, ..SETTINGS };
        let door = Door { name: "the server".to_owned(), secret: None, admits: Box::new(|_| true), most: 1, settings };
        let listener = Endpoint::listen(vec![socket], door, Arc::clone(&bell) as Arc<dyn Sink>).unwrap();
        let (mut far, admitted) = connect(address, FIRST);
        assert_eq!(admitted.unwrap(), 0);
        let session = until(&bell, || listener.session(b"node"));
        // This is more than the system takes. The listener has begun to write when the first byte is there.
        for size in [64 << 20, 1] {
            assert!(session.send(Frame { header: Vec::new(), payload: vec![1; size].into() }));
        }
        while far.peek(&mut [0]).unwrap() == 0 {}
        let mut listener = Some(listener);
        let closing = listener.take_if(|_| is_closing);
        let closing = closing.map(|listener| std::thread::spawn(move || listener.close(Duration::from_secs(3600))));
        far.write_all(&[prefix(1, 0), prefix(GOODBYE, 0)].concat()).unwrap();
        if closing.is_none() {
            assert!(is_gone(&until(&bell, || bell.event())), "the process knows it at once");
            assert!(!session.send(frame(1)), "nobody wants it");
        }
        // The peer did not want the remaining frames.
        assert_eq!([(); 2].map(|()| read_numbers(&mut far).unwrap()), [(1, 0), (GOODBYE, 1)]);
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "nothing follows");
        assert_eq!(closing.map(|closing| closing.join().unwrap()).unwrap_or_default(), 0);
    }
}

/// A close confirms everything that was sent, even in the middle of a frame of the other end.
#[test]
fn close_counts_no_frame_that_has_arrived_at_a_peer_that_is_writing() {
    for _ in 0..20 {
        let (bell, server_bell) = (Bell::default(), Bell::default());
        let (listener, address) = listener(None, &server_bell);
        let connection = TestClient::open(target(address, b"node 1", None), &bell);
        connection.send(frame(0));
        until(&server_bell, || listener.receive());
        for number in 1..20 {
            listener.send(b"node 1", Frame { header: Vec::new(), payload: vec![1; 3 << 20].into() });
            connection.send(frame(number));
        }
        assert_eq!(connection.0.close(Duration::from_secs(3600)), 0, "all have arrived");
        (1..20).for_each(|number| assert!(same(until(&server_bell, || listener.receive()).1) == frame(number)));
    }
}

/// A peer is lost without a goodbye: its process has ended, so its port is closed.
#[test]
fn close_ends_when_the_peer_is_known_to_be_gone_and_not_at_its_limit() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let network = Network::new(address);
    let connection = TestClient::open(target(network.address, b"node 1", None), &bell);
    exchange(&listener, &server_bell, &connection, &bell, 1);
    let far = listener.0.session(b"node 1").unwrap();
    until(&bell, || (far.kept_bytes() == 0 && connection.1.kept_bytes() == 0).then_some(()));
    drop(network);
    (0..3).for_each(|number| assert!(connection.send(frame(number))));
    assert!(far.send(frame(1)));
    let (sender, ends) = std::sync::mpsc::channel();
    for endpoint in [listener.0, connection.0] {
        let sender = sender.clone();
        std::thread::spawn(move || sender.send(endpoint.close(Duration::from_secs(3600))));
    }
    // This limit ends a hang.
    for _ in 0..2 {
        ends.recv_timeout(Duration::from_secs(100)).expect("it ends long before the hour");
    }
}

/// The thread fails when there is room for what the process wants to send.
struct HasNoRoom(Bell);

impl Sink for HasNoRoom {
    fn frame(&self, from: &Arc<Session>, frame: Frame<Vec<u8>>) {
        Sink::frame(&*self.0, from, frame);
    }

    fn event(&self, of: &Arc<Session>, event: Event) {
        Sink::event(&*self.0, of, event);
    }

    fn failed(&self, error: Error) {
        self.0.failed(error);
    }

    fn has_room(&self) {
        panic!("room that nobody can use (this test wants it)");
    }
}

#[test]
fn close_counts_the_frames_of_a_thread_that_fails_meanwhile() {
    let bell = Bell::default();
    let socket = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    let door =
        Door { name: "the server".to_owned(), secret: None, admits: Box::new(|_| true), most: 1, settings: SETTINGS };
    let listener = Endpoint::listen(vec![socket], door, Arc::new(HasNoRoom(Arc::clone(&bell)))).unwrap();
    let (mut far, admitted) = connect(address, FIRST);
    assert_eq!(admitted.unwrap(), 0);
    let session = until(&bell, || listener.session(b"node"));
    (0..3).for_each(|number| assert!(session.send(frame(number))));
    while read_frame(&mut far) != 3 {}
    // Next comes the goodbye.
    assert!(!session.has_room(0));
    assert_eq!(listener.close(Duration::from_secs(3600)), 3);
    assert!(matches!(until(&bell, || bell.event()), Event::Refused(_)), "it was the process that closed");
}

/// Reads what comes, and panics at a frame.
struct Panics(Bell);

impl Sink for Panics {
    fn frame(&self, _: &Arc<Session>, _: Frame<Vec<u8>>) {
        panic!("a frame that nobody can take (this test wants it)");
    }

    fn event(&self, of: &Arc<Session>, event: Event) {
        Sink::event(&*self.0, of, event);
    }

    fn failed(&self, error: Error) {
        self.0.failed(error);
    }
}

#[test]
fn a_thread_of_connections_that_panics_is_one_error_at_once_and_both_ends_of_each_session_are_over() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let sink = Arc::new(Panics(Arc::clone(&bell)));
    let (_endpoint, session) = Endpoint::connect(target(address, b"node 1", None), sink).unwrap();
    assert!(session.send(frame(1)));
    until(&server_bell, || listener.receive());
    assert!(listener.send(b"node 1", frame(1)));
    let thread = "the thread of the connections of the server";
    assert_eq!(until(&bell, || bell.event()), Event::Gone(format!("{thread} has ended")));
    let error = Error::ThreadEnded { thread: thread.to_owned(), rank: None };
    assert_eq!(until(&bell, || bell.event()), Event::Refused(error));
    assert!(!session.send(frame(2)), "nobody would send it");
    assert!(is_gone(&until(&server_bell, || listener.event())));
}

/// A proxy may pass connections on to another process of the job.
#[test]
fn a_process_of_the_job_that_is_not_the_one_which_was_wanted_is_refused_with_a_secret_and_without() {
    for secret in [None, Some(secret("a"))] {
        let (bell, server_bell) = (Bell::default(), Bell::default());
        let (listener, address) = listener(secret.clone(), &server_bell);
        let other = DialTarget { name: "server 2".to_owned(), ..target(address, b"node 1", secret) };
        let connection = TestClient::open(other, &bell);
        let Event::Refused(error) = until(&bell, || connection.event()) else { panic!("it was admitted") };
        assert!(error.to_string().contains("another process of the job listens there"), "{error}");
        assert!(listener.0.session(b"node 1").is_none());
    }
}

/// After a reset nothing comes through, for longer than the time limit for a peer that has closed its
/// connection.
#[test]
fn a_connection_that_is_reset_while_there_is_no_way_is_made_again_when_there_is_one() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(Some(secret("a")), &server_bell);
    let network = Network::new(address);
    let connection = TestClient::open(target(network.address, b"node 1", Some(secret("a"))), &bell);
    exchange(&listener, &server_bell, &connection, &bell, 10);
    network.reset();
    let cut = Instant::now();
    while cut.elapsed() < RESUME * 2 {
        assert!(connection.send(Frame::from(vec![7])), "the node has given up");
        assert!(listener.event().is_none() && connection.event().is_none(), "after {:?}", cut.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    network.mend();
    let mut count = 0;
    while count < 10 {
        let (_, frame) = until(&server_bell, || listener.receive());
        assert_eq!(same(frame), Frame::from(vec![7]));
        count += 1;
    }
}

/// Connects by hand. Returns the connection after the verdict, and the verdict.
fn connect(to: SocketAddr, resumption: Resumption) -> (TcpStream, Result<u64, HandshakeFailure>) {
    let mut stream = TcpStream::connect(to).unwrap();
    let hello = Hello { session: [1; 16], port: 0, identity: b"node".to_vec(), wanted: b"the server".to_vec() };
    let (mut client, hello) = crate::handshake::Client::new(&hello, None, [1; 32]);
    stream.write_all(&hello).unwrap();
    let (mut challenge, mut verdict) = ([0; CHALLENGE], [0; VERDICT]);
    stream.read_exact(&mut challenge).unwrap();
    stream.write_all(&client.prove(&challenge, resumption).unwrap()).unwrap();
    stream.read_exact(&mut verdict).unwrap();
    (stream, client.conclude(&verdict))
}

const FIRST: Resumption = Resumption { goes_on: false, attempt: 1, received: 0 };

/// An end that only writes gets the reset first, and the reader then sees a closed connection. The peer must
/// not count as gone, even with settings by which a closed connection is the end of the peer.
#[test]
fn a_reset_that_the_writer_meets_is_no_end_of_the_peer() {
    for _ in 0..20 {
        let inbox = Bell::default();
        let socket = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        let settings = Settings { resume: Duration::ZERO, at_once_bytes: 0, ..SETTINGS };
        let door = Door { name: "the server".to_owned(), secret: None, admits: Box::new(|_| true), most: 1, settings };
        let listener = Endpoint::listen(vec![socket], door, Arc::clone(&inbox) as Arc<dyn Sink>).unwrap();
        let (far, admitted) = connect(address, FIRST);
        assert_eq!(admitted.unwrap(), 0);
        let session = until(&inbox, || listener.session(b"node"));
        std::thread::scope(|scope| {
            let reset = scope.spawn(move || rustix::net::connect_unspec(&far).unwrap());
            while !reset.is_finished() {
                assert!(session.send(Frame::from(vec![1; 100])));
            }
        });
        for _ in 0..10 {
            assert!(session.send(Frame::from(vec![1; 100])));
        }
        let (again, admitted) = connect(address, Resumption { goes_on: true, attempt: 2, received: 0 });
        assert!(admitted.is_ok() && session.send(Frame::from(vec![1; 100])), "{admitted:?}");
        again.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_gone(&until(&inbox, || inbox.event())), "a connection that is closed is the end");
    }
}

/// Each connection is closed during the handshake, as a network may do. Even with settings by which a closed
/// connection is the end of the peer, the peer must count as alive while its port is open.
#[test]
fn a_handshake_that_is_cut_off_is_no_end_of_the_peer() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let network = Network::new(address);
    let mut target = target(network.address, b"node 1", None);
    target.settings.resume = Duration::ZERO;
    let connection = TestClient::open(target, &bell);
    exchange(&listener, &server_bell, &connection, &bell, 3);
    network.reset();
    until(&bell, || (!network.held.lock().as_ref()?.is_empty()).then_some(()));
    for stream in network.held.lock().as_mut().unwrap().drain(..) {
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    }
    until(&bell, || (!network.held.lock().as_ref()?.is_empty()).then_some(()));
    network.mend();
    exchange(&listener, &server_bell, &connection, &bell, 3);
    assert!(connection.event().is_none());
    drop(network);
    assert!(is_gone(&until(&bell, || connection.event())));
}

/// The acceptor has read an earlier connection of a process after a later one.
#[test]
fn an_earlier_connection_replaces_no_later_one() {
    let bell = Bell::default();
    let (listener, address) = listener(None, &bell);
    let (mut later, admitted) = connect(address, Resumption { attempt: 2, ..FIRST });
    assert_eq!(admitted.unwrap(), 0);
    let (mut earlier, _) = connect(address, FIRST);
    assert!(earlier.read(&mut [0]).is_err(), "it was reset");
    assert!(listener.send(b"node", frame(1)));
    later.read_exact(&mut [0; 32]).unwrap();
}

/// A proxy that passes connections on to a server, and breaks them.
struct Network {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    moved: Arc<Mutex<usize>>,
    resets: Mutex<usize>,
    is_down: Arc<Mutex<bool>>,
    /// Connections that were made while there is no way to the server.
    held: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Network {
    fn new(to: SocketAddr) -> Self {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let network = Network {
            address: socket.local_addr().unwrap(),
            open: Arc::default(),
            moved: Arc::default(),
            resets: Mutex::default(),
            is_down: Arc::default(),
            held: Arc::default(),
        };
        let (open, moved, is_down) =
            (Arc::clone(&network.open), Arc::clone(&network.moved), Arc::clone(&network.is_down));
        let held = Arc::clone(&network.held);
        std::thread::spawn(move || {
            while let Ok((client, _)) = socket.accept() {
                if *is_down.lock() {
                    return;
                }
                if let Some(held) = held.lock().as_mut() {
                    held.push(client);
                    continue;
                }
                let server = TcpStream::connect(to).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (moved, held) = (Arc::clone(&moved), Arc::clone(&held));
                    open.lock().push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut buffer = vec![0; 50_000];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                            *moved.lock() += count;
                        }
                        // A reset is to reach both ends as one.
                        if held.lock().is_none() {
                            to.shutdown(std::net::Shutdown::Both).ok();
                        }
                    });
                }
            }
        });
        network
    }

    /// Breaks the open connections after this number of bytes has passed, or after some time.
    fn reset_after(&self, bytes: usize) {
        let limit = *self.moved.lock() + bytes;
        let start = Instant::now();
        while *self.moved.lock() < limit && start.elapsed() < Duration::from_millis(100) {
            std::thread::yield_now();
        }
        self.cut();
        *self.resets.lock() += 1;
    }

    /// Resets the open connections at both ends, and lets nothing through until the network is mended.
    fn reset(&self) {
        *self.held.lock() = Some(Vec::new());
        for stream in self.open.lock().drain(..) {
            rustix::net::connect_unspec(&stream).unwrap();
        }
    }

    fn mend(&self) {
        for stream in self.held.lock().take().unwrap() {
            rustix::net::connect_unspec(&stream).ok();
        }
    }

    fn cut(&self) {
        for stream in self.open.lock().drain(..) {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        *self.is_down.lock() = true;
        TcpStream::connect(self.address).ok();
        self.cut();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever an admitted peer sends, the listener takes valid frames and goes on.
    #[test]
    fn any_bytes_after_the_handshake_are_frames_or_the_end(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 2 => Just(1), 1 => any::<u8>()], 0..120),
        number in prop_oneof![Just(1u64), any::<u64>()],
    ) {
        let bell = Bell::default();
        let (listener, address) = listener(None, &bell);
        let (mut peer, admitted) = connect(address, FIRST);
        prop_assert_eq!(admitted.unwrap(), 0);
        let sent = peer.write_all(&[&number.to_le_bytes()[..], &bytes].concat());
        // A frame that was whole is handed on; what was not ends with the connection.
        peer.shutdown(std::net::Shutdown::Write).ok();
        peer.read_to_end(&mut Vec::new()).ok();
        while let Some((identity, frame)) = listener.receive() {
            prop_assert!(sent.is_ok() && identity == b"node" && frame.size() < bytes.len());
        }
        drop(listener);
    }
}
