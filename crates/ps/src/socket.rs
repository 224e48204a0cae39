//! ZeroMQ sockets with the limits that this protocol needs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use zmq::{Context, DONTWAIT, Message, SNDMORE, Socket, SocketEvent, SocketType};

use ringpull_base::{Error, Result, forked};

/// The longest message a server or scheduler takes from a stranger's connection.
const MAX_MESSAGE_BYTES: i64 = 64 << 20;

/// How long a socket that is dropped tries to send what it still has, in milliseconds.
const LINGER_MS: i32 = 1000;

/// How often a socket tries to reach its peer, in milliseconds.
const RECONNECT_MS: i32 = 50;

/// A ZeroMQ error as ours.
pub(crate) fn failed(call: &str, rank: usize) -> impl FnOnce(zmq::Error) -> Error {
    let call = call.to_owned();
    move |cause| Error::Library {
        library: "ZeroMQ".to_owned(),
        call,
        code: i64::from(cause.to_raw()),
        text: cause.message().to_owned(),
        rank,
    }
}

/// A listening socket on `address`; port 0 lets the system choose. Gives the port too.
pub(crate) fn listen(context: &Context, address: SocketAddr, receive_limit: i32) -> Result<(Socket, u16)> {
    let failed = || failed("zmq_socket", 0);
    let socket = context.socket(SocketType::ROUTER).map_err(failed())?;
    socket.set_ipv6(address.is_ipv6()).map_err(failed())?;
    socket.set_maxmsgsize(MAX_MESSAGE_BYTES).map_err(failed())?;
    socket.set_linger(LINGER_MS).map_err(failed())?;
    socket.set_sndhwm(0).map_err(failed())?;
    socket.set_rcvhwm(receive_limit).map_err(failed())?;
    let endpoint = if address.port() == 0 { format!("tcp://{}:*", host(address.ip())) } else { tcp(address) };
    match socket.bind(&endpoint) {
        Ok(()) => {}
        // The root's name may be that of a service in front of this host.
        Err(zmq::Error::EADDRNOTAVAIL | zmq::Error::ENODEV) => {
            let any = if address.is_ipv6() { "[::]" } else { "0.0.0.0" };
            socket.bind(&format!("tcp://{any}:{}", address.port())).map_err(|cause| cannot_listen(address, cause))?;
        }
        Err(cause) => return Err(cannot_listen(address, cause)),
    }
    let bound = socket.get_last_endpoint().map_err(failed())?.unwrap_or_default();
    let port = bound.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(address.port());
    Ok((socket, port))
}

fn cannot_listen(address: SocketAddr, cause: zmq::Error) -> Error {
    let remedy = if cause == zmq::Error::EADDRINUSE {
        "another process has this port; end it, or set DMLC_PS_ROOT_PORT to a free port on every node"
    } else {
        "DMLC_PS_ROOT_URI must be an address of the scheduler's host, DMLC_NODE_HOST one of this host"
    };
    let text = format!("{} ({})", cause.message(), cause.to_raw());
    Error::Io { action: "listen on".to_owned(), path: address.to_string(), text, remedy: remedy.to_owned() }
}

/// A connecting socket that calls itself `identity`, if it is given one, and what watches its connections
/// from the first on; `name` is unique within `context`.
pub(crate) fn connect(
    context: &Context,
    to: SocketAddr,
    identity: &[u8],
    send_limit: i32,
    name: &str,
) -> Result<(Socket, Monitor)> {
    let failed = || failed("zmq_connect", 0);
    // The context's first socket starts its threads, each of which opens an event queue.
    let socket = forked::closing_on_exec(|| context.socket(SocketType::DEALER)).map_err(failed())?;
    socket.set_ipv6(to.is_ipv6()).map_err(failed())?;
    if !identity.is_empty() {
        socket.set_identity(identity).map_err(failed())?;
    }
    socket.set_linger(LINGER_MS).map_err(failed())?;
    socket.set_sndhwm(send_limit).map_err(failed())?;
    socket.set_rcvhwm(0).map_err(failed())?;
    socket.set_reconnect_ivl(RECONNECT_MS).map_err(failed())?;
    let monitor = Monitor::new(context, &socket, name)?;
    socket.connect(&tcp(to)).map_err(failed())?;
    Ok((socket, monitor))
}

fn host(ip: IpAddr) -> String {
    if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }
}

fn tcp(address: SocketAddr) -> String {
    format!("tcp://{address}")
}

/// What happened to a socket's connections.
pub(crate) enum Event {
    /// A connection ended.
    Disconnected,
    /// Somebody who does not speak ZeroMQ connected.
    Stranger,
}

/// Watches the connections of a socket.
pub(crate) struct Monitor(Socket);

impl Monitor {
    /// Watches `socket`; `name` is unique within `context`.
    pub(crate) fn new(context: &Context, socket: &Socket, name: &str) -> Result<Self> {
        let endpoint = format!("inproc://monitor-{name}");
        let strangers = SocketEvent::HANDSHAKE_FAILED_NO_DETAIL as i32
            | SocketEvent::HANDSHAKE_FAILED_PROTOCOL as i32
            | SocketEvent::HANDSHAKE_FAILED_AUTH as i32;
        let events = SocketEvent::CONNECTED as i32 | SocketEvent::DISCONNECTED as i32 | strangers;
        socket.monitor(&endpoint, events).map_err(failed("zmq_socket_monitor", 0))?;
        let pair = context.socket(SocketType::PAIR).map_err(failed("zmq_socket", 0))?;
        pair.connect(&endpoint).map_err(failed("zmq_connect", 0))?;
        Ok(Monitor(pair))
    }

    /// The socket to poll.
    pub(crate) fn socket(&self) -> &Socket {
        &self.0
    }

    /// The next event, if there is one.
    pub(crate) fn next(&self) -> Option<Event> {
        while let Ok(frames) = self.0.recv_multipart(DONTWAIT) {
            let event = frames.first().and_then(|frame| frame.get(..2)).map(|raw| u16::from_le_bytes([raw[0], raw[1]]));
            match event.map(SocketEvent::from_raw) {
                // A forked child must not keep the connection open when this process ends.
                Some(SocketEvent::CONNECTED) => {
                    let raw = frames[0].get(2..6).and_then(|raw| raw.try_into().ok());
                    raw.map(i32::from_ne_bytes).into_iter().for_each(forked::close_in_child);
                }
                Some(SocketEvent::DISCONNECTED) => return Some(Event::Disconnected),
                Some(
                    SocketEvent::HANDSHAKE_FAILED_NO_DETAIL
                    | SocketEvent::HANDSHAKE_FAILED_PROTOCOL
                    | SocketEvent::HANDSHAKE_FAILED_AUTH,
                ) => return Some(Event::Stranger),
                _ => {}
            }
        }
        None
    }
}

/// A message as its frames, without waiting; `None` if none is there.
pub(crate) fn receive(socket: &Socket) -> Result<Option<Vec<Message>>> {
    let mut frames = Vec::with_capacity(3);
    loop {
        match socket.recv_msg(DONTWAIT) {
            Ok(frame) => {
                let more = frame.get_more();
                frames.push(frame);
                if !more {
                    return Ok(Some(frames));
                }
            }
            Err(zmq::Error::EAGAIN) => return Ok(None),
            Err(zmq::Error::EINTR) => {}
            Err(cause) => return Err(failed("zmq_msg_recv", 0)(cause)),
        }
    }
}

/// Sends the frames as one message; whether it could be sent, for there was room and a peer.
pub(crate) fn send(socket: &Socket, frames: Vec<Message>) -> Result<bool> {
    let last = frames.len().saturating_sub(1);
    for (index, frame) in frames.into_iter().enumerate() {
        let flags = if index < last { DONTWAIT | SNDMORE } else { DONTWAIT };
        match socket.send(frame, flags) {
            Ok(()) => {}
            Err(zmq::Error::EAGAIN | zmq::Error::EHOSTUNREACH) => return Ok(false),
            Err(cause) => return Err(failed("zmq_msg_send", 0)(cause)),
        }
    }
    Ok(true)
}

/// Waits for any of `items` for at most `limit`.
pub(crate) fn poll(items: &mut [zmq::PollItem<'_>], limit: Duration) -> Result<()> {
    match zmq::poll(items, limit.as_millis() as i64) {
        Ok(_) | Err(zmq::Error::EINTR) => Ok(()),
        Err(cause) => Err(failed("zmq_poll", 0)(cause)),
    }
}

/// Closes `socket`, giving what it still has to send at most `limit`.
pub(crate) fn close(socket: Socket, limit: Duration) {
    if let Err(cause) = socket.set_linger(limit.as_millis() as i32) {
        tracing::warn!(%cause, "a socket is closed without a limit");
    }
    drop(socket);
}
