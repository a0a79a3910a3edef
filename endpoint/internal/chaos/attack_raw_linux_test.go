package chaos_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// sendTimeout is the time that an attacker waits for an owner that does not read.
const sendTimeout = 3 * time.Second

// raw is a connection on which the attacker writes arbitrary bytes. It must be used by one goroutine at a time.
type raw struct {
	fd   int
	last uint64 // id of the last request
}

// dial connects without a handshake.
func dial(socket string) (*raw, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(int64(sendTimeout))
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit), unix.Connect(fd, &unix.SockaddrUnix{Name: socket}))
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &raw{fd: fd}, nil
}

// handshake sends a hello and receives the answer.
func (c *raw) handshake(label string) error {
	if err := c.message(wire.KindHello, 0, message.Hello{Protocol: 1, Oldest: 1, Label: label}); err != nil {
		return err
	}
	kind, body, err := c.receive(10 * time.Second)
	if err == nil && kind != wire.KindHello {
		err = fmt.Errorf("expected a hello, received %s", describe(kind, body))
	}
	return err
}

// message sends a message as the body of a frame.
func (c *raw) message(kind wire.Kind, id uint64, value any) error {
	body, err := message.Marshal(value)
	if err != nil {
		return err
	}
	return c.frame(kind, id, body, 0)
}

// request sends a request and does not wait for the answer.
func (c *raw) request(op message.Op, value any, files ...int) error {
	body, err := message.MarshalRequest(op, 0, value)
	if err != nil {
		return err
	}
	return c.encoded(body, files...)
}

// encoded sends a request with an encoded body.
func (c *raw) encoded(body []byte, files ...int) error {
	c.last++
	return c.frame(wire.KindRequest, c.last, body, len(files), files...)
}

// frame sends a frame whose header announces a number of descriptors, with files.
func (c *raw) frame(kind wire.Kind, id uint64, body []byte, announced int, files ...int) error {
	head := header(len(body), kind, announced, id)
	var control []byte
	if len(files) > 0 {
		control = unix.UnixRights(files...)
	}
	if err := c.write(head, control); err != nil {
		return err
	}
	return c.write(body, nil)
}

// header returns the header of a frame.
func header(length int, kind wire.Kind, files int, id uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(length))
	b = binary.BigEndian.AppendUint16(b, uint16(kind))
	b = binary.BigEndian.AppendUint16(b, uint16(files))
	return binary.BigEndian.AppendUint64(b, id)
}

func (c *raw) write(b, control []byte) error {
	for len(b) > 0 {
		n, err := unix.SendmsgN(c.fd, b, control, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b, control = b[n:], nil
	}
	return nil
}

// keptBody is the maximum number of bytes of a body that are kept, enough for any error.
const keptBody = 64 << 10

// receive returns the kind of the next frame and the beginning of its body. The kernel drops descriptors, because there
// is no buffer for them.
func (c *raw) receive(limit time.Duration) (wire.Kind, []byte, error) {
	timeout := unix.NsecToTimeval(int64(limit))
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return 0, nil, err
	}
	var head [wire.HeaderBytes]byte
	if err := c.read(head[:]); err != nil {
		return 0, nil, err
	}
	left := int(binary.BigEndian.Uint32(head[:]))
	body := make([]byte, min(left, keptBody))
	if err := c.read(body); err != nil {
		return 0, nil, err
	}
	for left -= len(body); left > 0; {
		n := min(left, keptBody)
		if err := c.read(make([]byte, n)); err != nil {
			return 0, nil, err
		}
		left -= n
	}
	return wire.Kind(binary.BigEndian.Uint16(head[4:])), body, nil
}

func (c *raw) read(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(c.fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		}
		b = b[n:]
	}
	return nil
}

// describe describes a frame. It omits numbers and lengths, so that similar responses compare equal.
func describe(kind wire.Kind, body []byte) string {
	if kind != wire.KindError {
		return fmt.Sprint(kind)
	}
	var e message.Error
	if err := message.Unmarshal(body, &e); err != nil {
		return "an error that cannot be read"
	}
	return fmt.Sprintf("error %d %s: %s", e.Code, e.Type, e.Message)
}

// responses counts the responses that attackers receive. It keeps the first of the texts with the same beginning.
type responses struct {
	mu    sync.Mutex
	count map[string]int
	text  map[string]string
}

func (h *responses) note(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count == nil {
		h.count, h.text = map[string]int{}, map[string]string{}
	}
	key, _, _ := strings.Cut(text, ":")
	h.count[key]++
	if _, there := h.text[key]; !there {
		h.text[key] = text
	}
}

// noteError records the end of a connection.
func (h *responses) noteError(err error) {
	switch {
	case err == nil:
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		h.note("hung up")
	case errors.Is(err, unix.EAGAIN):
		h.note("not read")
	default:
		h.note(err.Error())
	}
}

// drain receives frames until timeout and records them.
func (h *responses) drain(c *raw, timeout time.Duration) {
	for {
		kind, body, err := c.receive(timeout)
		if errors.Is(err, unix.EAGAIN) {
			return // the connection has ended
		}
		if err != nil {
			h.noteError(err)
			return
		}
		h.note(describe(kind, body))
	}
}

// lines returns the responses as sentences, most frequent first.
func (h *responses) lines() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(h.count), func(a, b string) int {
		if n := h.count[b] - h.count[a]; n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	var out []string
	for _, k := range keys {
		text := h.text[k]
		if len(text) > 200 {
			text = text[:200] + "…"
		}
		out = append(out, fmt.Sprintf("%d × %s", h.count[k], text))
	}
	return out
}
