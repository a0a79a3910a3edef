package admission

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ofUnix returns the uid of the process that connected.
func ofUnix(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, os.NewSyscallError("getsockopt", failed)
	}
	return credentials.Uid, nil
}

// ofTCP returns the uid of the peer of a TCP connection on this host. remote is the peer's address, and local is the
// address of this end.
func ofTCP(remote, local net.Addr) (uint32, error) {
	from, ok := addrPort(remote)
	to, ok2 := addrPort(local)
	if !ok || !ok2 {
		return 0, fmt.Errorf("%w: %v is not a TCP address", ErrUnknownUser, remote)
	}
	uid, err := diagnosedUser(from, to, false)
	if err == nil || errors.Is(err, ErrUnknownUser) {
		return uid, err
	}
	return listedUser(from, to) // some sandboxes lack sock_diag
}

// ListenerUser returns the uid that listens at a TCP address of this host.
func ListenerUser(at net.Addr) (uint32, error) {
	to, ok := addrPort(at)
	if !ok {
		return 0, fmt.Errorf("%w: %v is not a TCP address", ErrUnknownUser, at)
	}
	return diagnosedUser(to, netip.AddrPortFrom(to.Addr(), 0), true) // no connection has port 0
}

func addrPort(addr net.Addr) (netip.AddrPort, bool) {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()), at.IsValid()
}

// The layout of sock_diag(7) for TCP: struct nlmsghdr, struct inet_diag_req_v2, struct inet_diag_msg.
const (
	sockDiagByFamily = 20
	headerBytes      = 16
	requestBytes     = 56
	answerBytes      = 72
	socketIDAt       = 8 // in the request; 4 in the answer
	stateListen      = 10
)

// diagnosedUser requests one socket from the kernel.
func diagnosedUser(from, to netip.AddrPort, listens bool) (uint32, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Sendto(fd, diagnosisRequest(from, to), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	return diagnosisOf(answer[:n], from, listens)
}

func diagnosisRequest(from, to netip.AddrPort) []byte {
	b := make([]byte, headerBytes+requestBytes)
	native := binary.NativeEndian
	native.PutUint32(b[0:], uint32(len(b)))
	native.PutUint16(b[4:], sockDiagByFamily)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST)
	request := b[headerBytes:]
	request[0] = unix.AF_INET6
	if from.Addr().Is4() {
		request[0] = unix.AF_INET
	}
	request[1] = unix.IPPROTO_TCP
	native.PutUint32(request[4:], ^uint32(0)) // any state
	copy(request[socketIDAt:], socketID(from, to))
	native.PutUint64(request[socketIDAt+40:], ^uint64(0)) // no cookie
	return b
}

// socketID returns the beginning of struct inet_diag_sockid: the ports and addresses.
func socketID(from, to netip.AddrPort) []byte {
	id := make([]byte, 36)
	binary.BigEndian.PutUint16(id[0:], from.Port())
	binary.BigEndian.PutUint16(id[2:], to.Port())
	copy(id[4:], from.Addr().AsSlice())
	copy(id[20:], to.Addr().AsSlice())
	return id
}

// diagnosisOf parses the answer. The kernel answers with a listening socket if there is no connection with the
// addresses. A socket that its process has closed has no inode, and its uid is that of root.
func diagnosisOf(answer []byte, from netip.AddrPort, listens bool) (uint32, error) {
	native := binary.NativeEndian
	if len(answer) < headerBytes+4 {
		return 0, errors.New("sock_diag: short answer")
	}
	body := answer[headerBytes:]
	if kind := native.Uint16(answer[4:]); kind == unix.NLMSG_ERROR {
		errno := unix.Errno(-int32(native.Uint32(body)))
		if errno == unix.ENOENT {
			return 0, ErrUnknownUser
		}
		return 0, os.NewSyscallError("sock_diag", errno)
	} else if kind != sockDiagByFamily || len(body) < answerBytes {
		return 0, errors.New("sock_diag: unexpected answer")
	}
	port := binary.BigEndian.Uint16(body[4:])
	uid, inode := native.Uint32(body[64:]), native.Uint32(body[68:])
	if (body[1] == stateListen) != listens || port != from.Port() || inode == 0 {
		return 0, ErrUnknownUser
	}
	return uid, nil
}

// listedUser searches the tables of all sockets for a socket.
func listedUser(from, to netip.AddrPort) (uint32, error) {
	var failed error
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		wide := strings.HasSuffix(table, "6")
		uid, found, err := findListed(bufio.NewScanner(f), listedAddress(from, wide), listedAddress(to, wide))
		_ = f.Close() // best effort: it was only read
		if found {
			return uid, err
		}
		failed = errors.Join(failed, err)
	}
	return 0, errors.Join(ErrUnknownUser, failed)
}

// findListed parses a table: number, local address, remote address, state, queues, timer, retransmits, uid, timeout,
// inode.
func findListed(lines *bufio.Scanner, from, to string) (uid uint32, found bool, err error) {
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 10 || words[1] != from || words[2] != to {
			continue
		}
		n, err := strconv.ParseUint(words[7], 10, 32)
		if words[9] == "0" || err != nil {
			return 0, true, errors.Join(ErrUnknownUser, err)
		}
		return uint32(n), true, nil
	}
	return 0, false, lines.Err()
}

// listedAddress formats an address as in the tables: 32-bit words in the byte order of the machine.
func listedAddress(at netip.AddrPort, wide bool) string {
	var text strings.Builder
	b := at.Addr().AsSlice()
	if wide {
		as16 := at.Addr().As16()
		b = as16[:]
	}
	for ; len(b) >= 4; b = b[4:] {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(b))
	}
	fmt.Fprintf(&text, ":%04X", at.Port())
	return text.String()
}
