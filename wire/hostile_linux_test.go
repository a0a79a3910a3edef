package wire

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// piece is one message of a hostile peer, with descriptors on its first byte.
type piece struct {
	bytes []byte
	files int
}

func TestHostileStreams(t *testing.T) {
	one := func(files int, b ...[]byte) piece { return piece{bytes.Join(b, nil), files} }
	plain := frameBytes(KindRequest, 0, 1, item(10))
	withFile := frameBytes(KindRequest, 1, 2, item(10))
	withTwo := frameBytes(KindRequest, 2, 2, item(10))
	large := frameBytes(KindRequest, 0, 1, item(100_000))
	largeWithFile := frameBytes(KindRequest, 1, 1, item(100_000))
	ahead := frameBytes(KindFiles, 2, 5, nil)
	tests := []struct {
		name   string
		pieces []piece
		good   int // number of frames received before the error
		want   []error
	}{
		{"unknown kind", []piece{one(0, frameBytes(9, 0, 1, item(10)))}, 0, []error{ErrProtocol}},
		{"kind zero", []piece{one(0, make([]byte, 32))}, 0, []error{ErrProtocol}},
		{"zero length", []piece{one(0, frameBytes(KindRequest, 0, 1, nil))}, 0, []error{ErrProtocol}},
		{"longer than the limit", []piece{one(0, frameBytes(KindRequest, 0, 1, item(1<<20+1))[:100])}, 0, []error{ErrProtocol, ErrTooLarge}},
		{"longest there is", []piece{one(0, bytes.Repeat([]byte{0xff}, 4), []byte{0, 2, 0, 0}, make([]byte, 8))}, 0, []error{ErrProtocol, ErrTooLarge}},
		{"more descriptors than a frame carries", []piece{one(0, frameBytes(KindRequest, 254, 1, item(10)))}, 0, []error{ErrProtocol}},
		{"missing descriptor", []piece{one(0, plain, withFile)}, 1, []error{ErrProtocol}},
		{"one of two descriptors", []piece{one(1, withTwo)}, 0, []error{ErrProtocol}},
		{"two for one descriptor", []piece{one(2, withFile)}, 0, []error{ErrProtocol}},
		{"surplus descriptor", []piece{one(1, plain)}, 0, []error{ErrProtocol}},
		{"surplus before an announcing frame", []piece{one(1, plain), one(1, withFile)}, 0, []error{ErrProtocol}},
		{"descriptors split over two messages", []piece{one(1, withTwo[:3]), one(1, withTwo[3:])}, 0, []error{ErrProtocol}},
		{"descriptors far behind the header", []piece{one(0, largeWithFile[:50_000]), one(1, largeWithFile[50_000:])}, 0, []error{ErrProtocol}},
		{"surplus in the body", []piece{one(0, plain[:20]), one(1, plain[20:])}, 0, []error{ErrProtocol}},
		{"surplus in a large body", []piece{one(0, large[:50_000]), one(1, large[50_000:])}, 0, []error{ErrProtocol}},
		{"surplus in many pieces", []piece{one(1, plain[:1]), one(1, plain[1:2]), one(1, plain[2:3]), one(1, plain[3:])}, 0, []error{ErrProtocol}},
		{"two announcing frames, descriptors of one", []piece{one(1, withFile, withFile)}, 1, []error{ErrProtocol}},
		{"two announcing frames, all descriptors at once", []piece{one(2, withFile, withFile)}, 0, []error{ErrProtocol}},
		{"files frame with a body", []piece{one(1, frameBytes(KindFiles, 1, 1, item(10)))}, 0, []error{ErrProtocol}},
		{"files frame without descriptors", []piece{one(0, frameBytes(KindFiles, 0, 1, nil))}, 0, []error{ErrProtocol}},
		{"files frame for another", []piece{one(2, ahead), one(0, plain)}, 0, []error{ErrProtocol}},
		{"files frame, then another's descriptors", []piece{one(2, ahead), one(1, withFile)}, 0, []error{ErrProtocol}},
		{"files frame and the end", []piece{one(2, ahead)}, 0, []error{io.ErrUnexpectedEOF}},
		{"more descriptors than the limit", []piece{one(2, ahead), one(2, ahead), one(1, frameBytes(KindRequest, 1, 5, item(10)))}, 0, []error{ErrProtocol, ErrTooLarge}},
		{"the end", []piece{one(0, plain)}, 1, []error{io.EOF}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			requireSameDescriptors(t)
			c, raw := rawPair(t, Limits{Frame: 1 << 20, Files: 4})
			var sender sync.WaitGroup
			sender.Go(func() {
				for _, p := range tt.pieces {
					sendRaw(t, raw, p.bytes, memfds(t, p.files)...)
				}
				raw.CloseWrite()
			})
			var err error
			got := 0
			for {
				var f Frame
				if f, err = c.Receive(); err != nil {
					break
				}
				got++
				require.NoError(t, f.Files.Close())
			}
			require.Equal(t, tt.good, got, "%v", err)
			for _, want := range tt.want {
				require.ErrorIs(t, err, want)
			}
			_, again := c.Receive()
			require.Equal(t, err, again, "the error is final")
			sender.Wait()
		})
	}
}

// Descriptors in files frames also count for a frame that announces none.
func TestAllDescriptorsAhead(t *testing.T) {
	c, raw := rawPair(t, Limits{})
	sendRaw(t, raw, frameBytes(KindFiles, 2, 5, nil), memfds(t, 2)...)
	sendRaw(t, raw, frameBytes(KindResponse, 0, 5, item(10)))
	f, err := c.Receive()
	require.NoError(t, err)
	requireMemfds(t, f.Files, 2)
}

// Descriptors attached behind a frame's first byte violate the protocol. The receiver notices only if two reads lie
// between. It must lose nothing in either case.
func TestDescriptorsBehindTheFirstByte(t *testing.T) {
	requireSameDescriptors(t)
	for range 20 {
		c, raw := rawPair(t, Limits{})
		frame := frameBytes(KindRequest, 1, 1, item(10))
		sendRaw(t, raw, frame[:20])
		sendRaw(t, raw, frame[20:], memfds(t, 1)...)
		f, err := c.Receive()
		if err == nil {
			requireMemfds(t, f.Files, 1)
		} else {
			require.ErrorIs(t, err, ErrProtocol)
		}
		require.NoError(t, c.Close())
	}
}

func TestCutOffAtEveryByte(t *testing.T) {
	requireSameDescriptors(t)
	files := memfds(t, 2)
	whole := frameBytes(KindRequest, 2, 7, item(40))
	for cut := range len(whole) {
		c, raw := rawPair(t, Limits{})
		if cut > 0 {
			sendRaw(t, raw, whole[:cut], files...)
		}
		require.NoError(t, raw.Close())
		_, err := c.Receive()
		if cut == 0 {
			require.ErrorIs(t, err, io.EOF)
		} else {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "cut at %d", cut)
		}
		require.NoError(t, c.Close())
	}
}

// sendPieces sends a stream in messages that end at the given places. Each frame's descriptors are on its first byte,
// and a frame with descriptors starts a message.
func sendPieces(t testing.TB, raw *net.UnixConn, stream []byte, files map[int][]*os.File, cuts func(left int) int) {
	for at := 0; at < len(stream); {
		n := cuts(len(stream) - at)
		for i := 1; i < n; i++ {
			if files[at+i] != nil {
				n = i
			}
		}
		sendRaw(t, raw, stream[at:at+n], files[at]...)
		at += n
	}
}

// segmentation sends frames in arbitrary pieces and checks that each arrives whole with its own descriptors.
func segmentation(t testing.TB, seed uint64, frames int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	c, raw := rawPair(t, Limits{})
	var stream []byte
	files := map[int][]*os.File{}
	type sent struct {
		id     uint64
		body   []byte
		number int
	}
	var want []sent
	for id := range uint64(frames) {
		size := 9 + rng.IntN(60)
		if rng.IntN(8) == 0 {
			size = 9 + rng.IntN(3*bufferBytes)
		}
		number := max(0, rng.IntN(5)-2)
		if number > 0 {
			files[len(stream)] = memfds(t, number)
		}
		body := item(size)
		stream = append(stream, frameBytes(KindRequest, number, id, body)...)
		want = append(want, sent{id, body, number})
	}
	largest := 1 + rng.IntN(1+rng.IntN(20_000))
	var sender sync.WaitGroup
	sender.Go(func() {
		sendPieces(t, raw, stream, files, func(left int) int { return min(left, 1+rng.IntN(largest)) })
		raw.CloseWrite()
	})
	for _, w := range want {
		f, err := c.Receive()
		require.NoError(t, err)
		require.Equal(t, w.id, f.ID)
		require.True(t, bytes.Equal(w.body, f.Body))
		requireMemfds(t, f.Files, w.number)
	}
	_, err := c.Receive()
	require.ErrorIs(t, err, io.EOF)
	sender.Wait()
}

func TestSegmentation(t *testing.T) {
	requireSameDescriptors(t)
	for seed := range uint64(40) {
		segmentation(t, seed, 20)
	}
}

// The reader assigns descriptors to frames based on this behaviour of the kernel: one read returns segments without
// descriptors and the first segment with them, ends within or behind that segment, and delivers its descriptors with
// its first byte.
func TestKernelEndsAReadBehindDescriptors(t *testing.T) {
	requireSameDescriptors(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[1])
	f := os.NewFile(uintptr(pair[0]), "pair")
	sender, err := net.FileConn(f)
	require.NoError(t, err)
	f.Close()
	defer sender.Close()
	u := sender.(*net.UnixConn)
	sendRaw(t, u, []byte("aa"))
	sendRaw(t, u, []byte("bbbb"), memfds(t, 2)...)
	sendRaw(t, u, []byte("cc"))
	sendRaw(t, u, []byte("dd"), memfds(t, 1)...)
	sendRaw(t, u, []byte("ee"))

	read := func(size int) (string, int) {
		b, control := make([]byte, size), make([]byte, controlBytes)
		n, oobn, _, _, err := unix.Recvmsg(pair[1], b, control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		require.NoError(t, err)
		s := source{buf: &buffer{control: control}, ctl: oobn}
		fds, err := s.descriptors()
		require.NoError(t, err)
		closeDescriptors(fds)
		return string(b[:n]), len(fds)
	}
	expect := func(size int, bytes string, files int) {
		t.Helper()
		gotBytes, gotFiles := read(size)
		require.Equal(t, bytes, gotBytes)
		require.Equal(t, files, gotFiles)
	}
	expect(4, "aabb", 2)
	expect(100, "bbccdd", 1)
	expect(100, "ee", 0)
}

func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}, uint64(1), uint64(0))
	f.Add(frameBytes(KindFiles, 2, 5, nil), uint64(3), uint64(2))
	f.Add(append(frameBytes(KindRequest, 1, 5, item(20)), frameBytes(KindResponse, 0, 6, item(300))...), uint64(9), uint64(1))
	f.Fuzz(func(t *testing.T, stream []byte, cuts, fileBits uint64) {
		if len(stream) > 1<<16 {
			return
		}
		before := descriptorCount(t)
		files := memfds(t, 2)
		c, raw := rawPair(t, Limits{Frame: 1 << 15, Files: 6})
		var sender sync.WaitGroup
		// The bits of cuts and fileBits determine the length of each message and its number of descriptors.
		sender.Go(func() {
			defer raw.Close()
			for at, i := 0, 0; at < len(stream); i++ {
				n := min(len(stream)-at, 1+int(cuts>>(i%60)&15)*7)
				if _, _, err := raw.WriteMsgUnix(stream[at:at+n], rights(files[:fileBits>>(i%60)&3%3]), nil); err != nil {
					return // the receiver has refused the stream
				}
				at += n
			}
		})
		var sum int
		for {
			frame, err := c.Receive()
			if err != nil {
				break
			}
			sum += HeaderBytes + len(frame.Body)
			frame.Files.Close()
		}
		require.LessOrEqual(t, sum, len(stream))
		c.Close()
		sender.Wait()
		for _, f := range files {
			f.Close()
		}
		require.Equal(t, before, descriptorCount(t))
	})
}

func rights(files []*os.File) []byte {
	if len(files) == 0 {
		return nil
	}
	fds, _ := fileDescriptors(files)
	return unix.UnixRights(fds...)
}

func FuzzSegmentation(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { segmentation(t, seed, 8) })
}
