package edge_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
)

// version2 returns a header of version 2 of the PROXY protocol.
func version2(command, family byte, body []byte) string {
	head := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), command, family)
	return string(append(binary.BigEndian.AppendUint16(head, uint16(len(body))), body...))
}

// addresses returns the body of a header of version 2: client and gateway, with a port each, and an extension.
func addresses(client, gateway string, extension ...byte) []byte {
	from, to := netip.MustParseAddrPort(client), netip.MustParseAddrPort(gateway)
	body := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	return append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(body, from.Port()), to.Port()), extension...)
}

// proxyHeaders are the first bytes of connections of a proxy and the remote address that they give: empty if the listener must
// close the connection, and "proxy" for that of the proxy itself.
var proxyHeaders = []struct{ name, header, remote string }{
	{"TCP4", "PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\r\n", "203.0.113.7:56324"},
	{"TCP4, port 0", "PROXY TCP4 203.0.113.7 192.0.2.1 0 0\r\n", "203.0.113.7:0"},
	{"TCP6", "PROXY TCP6 2001:db8::7 2001:db8::1 65535 443\r\n", "[2001:db8::7]:65535"},
	{"TCP6, longest", "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"},
	{"TCP6 of IPv4", "PROXY TCP6 ::ffff:203.0.113.7 ::1 1 2\r\n", "203.0.113.7:1"},
	{"unknown", "PROXY UNKNOWN\r\n", "proxy"},
	{"unknown with addresses", "PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", "proxy"},
	{"version 2, TCP4", version2(0x21, 0x11, addresses("203.0.113.7:56324", "192.0.2.1:443")), "203.0.113.7:56324"},
	{"version 2, TCP6", version2(0x21, 0x21, addresses("[2001:db8::7]:1", "[2001:db8::1]:443")), "[2001:db8::7]:1"},
	{"version 2 with an extension", version2(0x21, 0x11, addresses("203.0.113.7:1", "192.0.2.1:443", 0x04, 0, 2, 1, 2)), "203.0.113.7:1"},
	{"version 2, local", version2(0x20, 0x11, addresses("203.0.113.7:1", "192.0.2.1:443")), "proxy"},
	{"version 2, local without addresses", version2(0x20, 0, nil), "proxy"},
	{"version 2, unspecified", version2(0x21, 0, nil), "proxy"},
	{"version 2, Unix", version2(0x21, 0x31, make([]byte, 216)), "proxy"},

	{"no header", "hello, this is a request\r\n", ""},
	{"HTTP", "GET / HTTP/1.1\r\n\r\n", ""},
	{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""},
	{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\x00", ""},
	{"lower case", "proxy TCP4 203.0.113.7 192.0.2.1 56324 443\r\n", ""},
	{"unknown family", "PROXY UDP4 203.0.113.7 192.0.2.1 56324 443\r\n", ""},
	{"without addresses", "PROXY TCP4\r\n     ", ""},
	{"one address", "PROXY TCP4 203.0.113.7 56324\r\n", ""},
	{"too many fields", "PROXY TCP4 203.0.113.7 192.0.2.1 56324 443 1\r\n", ""},
	{"two spaces", "PROXY TCP4  203.0.113.7 192.0.2.1 56324 443\r\n", ""},
	{"tab", "PROXY TCP4 203.0.113.7\t192.0.2.1 56324 443\r\n", ""},
	{"IPv6 in TCP4", "PROXY TCP4 2001:db8::7 192.0.2.1 56324 443\r\n", ""},
	{"IPv4 in TCP6", "PROXY TCP6 203.0.113.7 2001:db8::1 56324 443\r\n", ""},
	{"zone", "PROXY TCP6 fe80::1%eth0 fe80::2 56324 443\r\n", ""},
	{"name", "PROXY TCP4 localhost 192.0.2.1 56324 443\r\n", ""},
	{"octal", "PROXY TCP4 203.0.113.07 192.0.2.1 56324 443\r\n", ""},
	{"bad destination", "PROXY TCP4 203.0.113.7 192.0.2.256 56324 443\r\n", ""},
	{"large port", "PROXY TCP4 203.0.113.7 192.0.2.1 65536 443\r\n", ""},
	{"negative port", "PROXY TCP4 203.0.113.7 192.0.2.1 -1 443\r\n", ""},
	{"port with a zero", "PROXY TCP4 203.0.113.7 192.0.2.1 080 443\r\n", ""},
	{"port with a sign", "PROXY TCP4 203.0.113.7 192.0.2.1 +80 443\r\n", ""},
	{"no port", "PROXY TCP4 203.0.113.7 192.0.2.1  443\r\n", ""},
	{"line feed alone", "PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\n", ""},
	{"carriage return within", "PROXY TCP4 203.0.113.7\r192.0.2.1 56324 443\r\n", ""},
	{"long line", "PROXY UNKNOWN " + strings.Repeat("x", 100) + "\r\n", ""},
	{"endless line", "PROXY TCP4 " + strings.Repeat("1", 4096), ""},
	{"version 1 in the signature", "\r\n\r\n\x00\r\nQUIT\n\x11\x11\x00\x0c" + string(make([]byte, 12)), ""},
	{"version 3", version2(0x31, 0x11, addresses("203.0.113.7:1", "192.0.2.1:443")), ""},
	{"unknown command", version2(0x22, 0x11, addresses("203.0.113.7:1", "192.0.2.1:443")), ""},
	{"datagrams", version2(0x21, 0x12, addresses("203.0.113.7:1", "192.0.2.1:443")), ""},
	{"version 2, unknown family", version2(0x21, 0x41, make([]byte, 216)), ""},
	{"version 2, short TCP4", version2(0x21, 0x11, make([]byte, 11)), ""},
	{"version 2, short TCP6", version2(0x21, 0x21, make([]byte, 35)), ""},
	{"version 2, short Unix", version2(0x21, 0x31, make([]byte, 215)), ""},
	{"version 2, large", version2(0x20, 0, make([]byte, 4097)), ""},
}

// proxied starts a server that answers each connection with the remote address and the first five bytes after the header. The
// addresses of isProxy are those of a proxy.
func proxied(t *testing.T, stall time.Duration, isProxy func(netip.Addr) bool) *edge.Listener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := edge.Listen(inner, 0, stall)
	l.Proxy = isProxy
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				text := make([]byte, 5)
				if _, err := io.ReadFull(conn, text); err == nil {
					_, _ = conn.Write([]byte(conn.RemoteAddr().String() + " " + string(text)))
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	return l
}

func everyone(netip.Addr) bool { return true }

// exchange sends data in pieces of a size and returns the local address and what the server answers.
func exchange(t *testing.T, l net.Listener, data string, piece int) (local, answer string) {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	for at := 0; at < len(data); at += piece {
		if _, err := conn.Write([]byte(data[at:min(at+piece, len(data))])); err != nil {
			break // the server has closed the connection
		}
	}
	got, _ := io.ReadAll(conn) // fails if the connection is closed with unread data
	return conn.LocalAddr().String(), string(got)
}

// A connection of a proxy has the address of its client. One without a correct header is closed before it sends anything else.
func TestProxyHeaders(t *testing.T) {
	t.Parallel()
	l := proxied(t, patience, everyone)
	refused := uint64(0)
	for _, piece := range []int{1, 5, 1 << 20} {
		for _, row := range proxyHeaders {
			local, answer := exchange(t, l, row.header+"hello", piece)
			switch row.remote {
			case "":
				require.Empty(t, answer, row.name)
				refused++
			case "proxy":
				require.Equal(t, local+" hello", answer, row.name)
			default:
				require.Equal(t, row.remote+" hello", answer, row.name)
			}
		}
	}
	require.Equal(t, refused, l.Malformed())
}

// Each beginning of a correct header that ends there is refused.
func TestIncompleteProxyHeaders(t *testing.T) {
	t.Parallel()
	l := proxied(t, patience, everyone)
	for _, row := range proxyHeaders {
		if row.remote == "" {
			continue
		}
		for n := range len(row.header) {
			conn, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			_, err = conn.Write([]byte(row.header[:n]))
			require.NoError(t, err)
			require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			got, _ := io.ReadAll(conn)
			require.Empty(t, got, "%s: %q", row.name, row.header[:n])
			require.NoError(t, conn.Close())
		}
	}
}

// A header of an address that is not a proxy is data.
func TestProxyHeaderOfOthers(t *testing.T) {
	t.Parallel()
	l := proxied(t, patience, func(addr netip.Addr) bool { return addr == netip.MustParseAddr("192.0.2.1") })
	for _, row := range proxyHeaders {
		local, answer := exchange(t, l, row.header, 1<<20)
		require.Equal(t, local+" "+row.header[:5], answer, row.name)
	}
	require.Zero(t, l.Malformed())
}

// A proxy that delays its header delays no other connection, and is disconnected after the stall time or at the end.
func TestProxyHeaderStalls(t *testing.T) {
	t.Parallel()
	silent := func(l net.Listener) net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte("PROXY TCP4 "))
		require.NoError(t, err)
		return conn
	}
	ends := func(conn net.Conn) {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		got, err := io.ReadAll(conn)
		require.Empty(t, got)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it did not end")
	}
	short := proxied(t, 300*time.Millisecond, everyone)
	conn := silent(short)
	_, answer := exchange(t, short, proxyHeaders[0].header+"hello", 1<<20)
	require.Equal(t, proxyHeaders[0].remote+" hello", answer)
	ends(conn)
	long := proxied(t, patience, everyone)
	conn = silent(long)
	_, answer = exchange(t, long, proxyHeaders[0].header+"hello", 1<<20)
	require.Equal(t, proxyHeaders[0].remote+" hello", answer)
	require.NoError(t, long.Close())
	ends(conn)
}
