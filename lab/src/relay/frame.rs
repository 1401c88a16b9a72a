//! Frames of a TUN device: a virtio header, then one IP packet that may stand for many packets of a wire. Pure.
//!
//! A host's kernel hands over up to 64 KiB of a TCP stream as one frame, which a real card would cut into packets of
//! the MTU. What becomes of those packets is decided one by one, so [`parse`] tells how many they are, and [`split`]
//! makes the frames that carry the ones that arrived. Any bytes may come in: what can't be understood is an [`Unfit`].

use std::net::Ipv4Addr;
use std::ops::Range;

/// Bytes of the virtio header before each packet.
pub(crate) const VNET_BYTES: usize = 10;
/// Bytes of the longest frame there is: the virtio header and the longest IPv4 packet.
pub(crate) const FRAME_BYTES_MAX: usize = VNET_BYTES + 65_535;

/// What a wire adds to each packet: the Ethernet header.
const ETHERNET_BYTES: u32 = 14;
/// The longest IPv4 header and the longest TCP header behind the virtio header.
const HEADERS_BYTES_MAX: usize = VNET_BYTES + 60 + 60;
const IPV4_BYTES_MIN: usize = 20;
const UDP_BYTES: usize = 8;
const TCP_BYTES_MIN: usize = 20;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// The packets that a frame is on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// How many packets, at least 1.
    pub(crate) packets: u32,
    /// Bytes of every packet but the last, Ethernet header included.
    pub(crate) packet_bytes: u32,
    /// Bytes of the last packet, Ethernet header included.
    pub(crate) last_bytes: u32,
}

impl Load {
    /// Bytes of all packets together, Ethernet headers included.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_of(&(0..self.packets))
    }

    /// Bytes of the packets of `run`, Ethernet headers included.
    pub(crate) fn bytes_of(&self, run: &Range<u32>) -> u64 {
        let count = u64::from(run.end.saturating_sub(run.start));
        if count > 0 && run.end == self.packets {
            (count - 1) * u64::from(self.packet_bytes) + u64::from(self.last_bytes)
        } else {
            count * u64::from(self.packet_bytes)
        }
    }

    /// The packets of `run`, which is not empty, alone.
    pub(crate) fn part(&self, run: &Range<u32>) -> Self {
        let packets = run.end - run.start;
        let last_bytes = if run.end == self.packets { self.last_bytes } else { self.packet_bytes };
        let packet_bytes = if packets == 1 { last_bytes } else { self.packet_bytes };
        Self { packets, packet_bytes, last_bytes }
    }
}

/// What the relay knows of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Where the packet wants to go.
    pub(crate) destination: Ipv4Addr,
    /// The packets it stands for.
    pub(crate) load: Load,
    /// Bytes of payload in every segment but the last; all of the payload where there is one segment.
    segment_bytes: usize,
    /// Bytes of the IPv4 header.
    ip_bytes: usize,
    /// Bytes of all headers, the virtio header included.
    headers_bytes: usize,
    /// Bytes of the frame that count: what lies behind the packet's own length is padding.
    frame_bytes: usize,
}

/// Why a frame goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// An IPv6 packet: the pretend networks have IPv4 only.
    Ipv6,
    /// Lengths that contradict each other, or a kind of segmentation that was not asked for.
    Malformed,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The kernel writes the virtio header in the machine's order, which is little endian on all this runs on.
fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Understands one frame as read from the device.
pub(crate) fn parse(frame: &[u8]) -> Result<Shape, Unfit> {
    let ip = frame.get(VNET_BYTES..).ok_or(Unfit::Malformed)?;
    match ip.first().map(|first| first >> 4) {
        Some(4) if ip.len() >= IPV4_BYTES_MIN => {}
        Some(6) => return Err(Unfit::Ipv6),
        _ => return Err(Unfit::Malformed),
    }
    let ip_bytes = usize::from(ip[0] & 15) * 4;
    let total = usize::from(be16(ip, 2));
    if ip_bytes < IPV4_BYTES_MIN || total < ip_bytes || total > ip.len() {
        return Err(Unfit::Malformed);
    }
    let destination = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
    let bare = Shape {
        destination,
        load: one_packet(total),
        segment_bytes: total - ip_bytes,
        ip_bytes,
        headers_bytes: VNET_BYTES + ip_bytes,
        frame_bytes: VNET_BYTES + total,
    };
    if frame[1] == GSO_NONE { Ok(bare) } else { segmented(&frame[..bare.frame_bytes], bare) }
}

fn one_packet(ip_total_bytes: usize) -> Load {
    let bytes = u32::try_from(ip_total_bytes).expect("an IPv4 length has 16 bits") + ETHERNET_BYTES;
    Load { packets: 1, packet_bytes: bytes, last_bytes: bytes }
}

/// The shape of a frame that says it is many packets.
fn segmented(frame: &[u8], bare: Shape) -> Result<Shape, Unfit> {
    let ip = &frame[VNET_BYTES..];
    let transport = &ip[bare.ip_bytes..];
    // Fragments have no transport header of their own to repeat.
    if be16(ip, 6) & 0x3fff != 0 {
        return Err(Unfit::Malformed);
    }
    let transport_bytes = transport_header_bytes(frame[1], ip[9], transport).ok_or(Unfit::Malformed)?;
    let segment_bytes = usize::from(le16(frame, 4));
    let payload_bytes = transport.len() - transport_bytes;
    if segment_bytes == 0 {
        return Err(Unfit::Malformed);
    }
    let packets = payload_bytes.div_ceil(segment_bytes).max(1);
    let last_payload = payload_bytes - (packets - 1) * segment_bytes;
    let headers = bare.ip_bytes + transport_bytes;
    let load = Load {
        packets: u32::try_from(packets).expect("at most one packet for each byte of payload"),
        packet_bytes: one_packet(headers + segment_bytes.min(payload_bytes)).packet_bytes,
        last_bytes: one_packet(headers + last_payload).last_bytes,
    };
    Ok(Shape { load, segment_bytes, headers_bytes: VNET_BYTES + headers, ..bare })
}

/// Bytes of the header that each segment repeats, where the kind of segmentation fits the protocol.
fn transport_header_bytes(gso_type: u8, protocol: u8, transport: &[u8]) -> Option<usize> {
    match (gso_type & !GSO_ECN, protocol) {
        (GSO_TCPV4, PROTOCOL_TCP) if transport.len() >= TCP_BYTES_MIN => {
            let bytes = usize::from(transport[12] >> 4) * 4;
            (TCP_BYTES_MIN..=transport.len()).contains(&bytes).then_some(bytes)
        }
        (GSO_UDP_L4, PROTOCOL_UDP) if transport.len() >= UDP_BYTES => Some(UDP_BYTES),
        _ => None,
    }
}

/// A run of packets of a frame, as a frame of its own.
pub(crate) struct Piece<'a> {
    headers: [u8; HEADERS_BYTES_MAX],
    headers_bytes: usize,
    payload: &'a [u8],
    /// The packets it carries.
    pub(crate) load: Load,
}

impl Piece<'_> {
    /// Bytes of the frame, its virtio header included.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.headers_bytes + self.payload.len()
    }

    /// Writes the frame to the start of `to`, which has room for [`Piece::frame_bytes`].
    pub(crate) fn write_to(&self, to: &mut [u8]) {
        to[..self.headers_bytes].copy_from_slice(&self.headers[..self.headers_bytes]);
        to[self.headers_bytes..self.frame_bytes()].copy_from_slice(self.payload);
    }
}

/// The frames that carry what is left of `frame`, whose shape [`parse`] told: one for each run in `survivors`.
/// The runs are not empty, ascend and lie within the frame's packets.
pub(crate) fn split<'a>(
    frame: &'a [u8],
    shape: &'a Shape,
    survivors: &'a [Range<u32>],
) -> impl Iterator<Item = Piece<'a>> {
    survivors.iter().map(move |run| piece(&frame[..shape.frame_bytes], shape, run))
}

fn piece<'a>(frame: &'a [u8], shape: &Shape, run: &Range<u32>) -> Piece<'a> {
    let (first, end) = (run.start as usize, run.end as usize);
    let payload = &frame[shape.headers_bytes..];
    let payload_start = (first * shape.segment_bytes).min(payload.len());
    let payload = &payload[payload_start..(end * shape.segment_bytes).min(payload.len())];
    let load = shape.load.part(run);
    let mut headers = [0; HEADERS_BYTES_MAX];
    headers[..shape.headers_bytes].copy_from_slice(&frame[..shape.headers_bytes]);
    // One packet alone can have lost nothing: it is whole, and keeps even a checksum that the sender completed.
    if shape.load.packets > 1 {
        let transport_bytes = shape.headers_bytes - VNET_BYTES - shape.ip_bytes + payload.len();
        let (vnet, packet) = headers[..shape.headers_bytes].split_at_mut(VNET_BYTES);
        let (ip, transport) = packet.split_at_mut(shape.ip_bytes);
        rewrite_ip(ip, first, transport_bytes);
        if ip[9] == PROTOCOL_TCP {
            rewrite_tcp(transport, payload_start, first == 0, run.end == shape.load.packets);
        } else {
            put16(transport, 4, length16(transport_bytes));
        }
        put16(transport, checksum_offset(ip[9]), pseudo_sum(ip, transport_bytes));
        rewrite_vnet(vnet, ip, load.packets, first == 0);
    }
    Piece { headers, headers_bytes: shape.headers_bytes, payload, load }
}

fn length16(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a part is no longer than the packet it was cut from")
}

/// Where a transport header has its checksum.
fn checksum_offset(protocol: u8) -> usize {
    if protocol == PROTOCOL_TCP { 16 } else { 6 }
}

/// Segments are numbered on from the frame's identification, as kernels and cards do.
fn rewrite_ip(ip: &mut [u8], first: usize, transport_bytes: usize) {
    let total = length16(ip.len() + transport_bytes);
    let identification = be16(ip, 4).wrapping_add(u16::try_from(first).expect("fewer packets than bytes"));
    put16(ip, 2, total);
    put16(ip, 4, identification);
    put16(ip, 10, 0);
    let checksum = !fold(sum(ip));
    put16(ip, 10, checksum);
}

/// What ends a stream or asks for delivery belongs to the last segment; that the window was reduced, to the first.
fn rewrite_tcp(tcp: &mut [u8], advance: usize, has_first: bool, has_last: bool) {
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let advance = u32::try_from(advance).expect("less than one packet's length");
    tcp[4..8].copy_from_slice(&sequence.wrapping_add(advance).to_be_bytes());
    if !has_last {
        tcp[13] &= !(TCP_FIN | TCP_PSH);
    }
    if !has_first {
        tcp[13] &= !TCP_CWR;
    }
}

/// The receiver's kernel completes the checksum, or takes it as good: lengths have changed, so it can't stay.
fn rewrite_vnet(vnet: &mut [u8], ip: &[u8], packets: u32, has_first: bool) {
    vnet[0] |= NEEDS_CSUM;
    if !has_first {
        vnet[1] &= !GSO_ECN;
    }
    if packets == 1 {
        vnet[1] = GSO_NONE;
        vnet[4..6].fill(0);
    }
    vnet[6..8].copy_from_slice(&length16(ip.len()).to_le_bytes());
    vnet[8..10].copy_from_slice(&length16(checksum_offset(ip[9])).to_le_bytes());
}

/// The sum over addresses, protocol and length that a transport checksum starts from.
fn pseudo_sum(ip: &[u8], transport_bytes: usize) -> u16 {
    fold(sum(&ip[12..20]) + u64::from(ip[9]) + u64::from(length16(transport_bytes)))
}

/// Sum of the 16-bit words; an odd last byte counts as the upper half of a word.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)));
    words.sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded to 16 bits")
}

#[cfg(test)]
mod tests;
