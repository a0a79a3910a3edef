package peers

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/fxamacker/cbor/v2"
)

// bare is a socket with a length and a CBOR item in each direction, one call at a time per connection. The first byte
// selects the function.
func bare() peer {
	return peer{name: "bare", serve: serveBare, dial: dialBare}
}

// Functions of the bare socket.
const (
	bareEcho byte = iota
	bareSend
)

// bareHead is the size of the function and the length of the item.
const bareHead = 1 + 8

func serveBare(socket string) (io.Closer, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerBare(c)
		}
	}()
	return l, nil
}

func answerBare(c net.Conn) {
	defer c.Close()
	b := bareConn{Conn: c, r: bufio.NewReader(c)}
	for {
		fn, item, err := b.receive()
		if err != nil {
			return
		}
		var in echoed
		if err := cbor.Unmarshal(item, &in); err != nil {
			return
		}
		var out any = in
		if fn == bareSend {
			out = sign(in.Data)
		}
		if err := b.sendItem(fn, out); err != nil {
			return
		}
	}
}

type bareConn struct {
	net.Conn
	r   *bufio.Reader
	out []byte
}

func (b *bareConn) receive() (fn byte, item []byte, err error) {
	var head [bareHead]byte
	if _, err := io.ReadFull(b.r, head[:]); err != nil {
		return 0, nil, err
	}
	item = make([]byte, binary.BigEndian.Uint64(head[1:]))
	_, err = io.ReadFull(b.r, item)
	return head[0], item, err
}

func (b *bareConn) sendItem(fn byte, v any) error {
	item, err := cbor.Marshal(v)
	if err != nil {
		return err
	}
	b.out = binary.BigEndian.AppendUint64(append(b.out[:0], fn), uint64(len(item)))
	if len(item) > 64<<10 {
		bufs := net.Buffers{b.out, item}
		_, err := bufs.WriteTo(b.Conn)
		return err
	}
	b.out = append(b.out, item...)
	_, err = b.Write(b.out)
	return err
}

// bareClient holds a connection for each caller.
type bareClient chan *bareConn

func dialBare(socket string, callers int) (client, error) {
	c := make(bareClient, callers)
	for range callers {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return nil, err
		}
		c <- &bareConn{Conn: conn, r: bufio.NewReader(conn)}
	}
	return c, nil
}

func (c bareClient) call(fn byte, in, out any) error {
	conn := <-c
	defer func() { c <- conn }()
	if err := conn.sendItem(fn, in); err != nil {
		return err
	}
	got, item, err := conn.receive()
	if err != nil {
		return err
	}
	if got != fn {
		return fmt.Errorf("answer of function %d instead of %d", got, fn)
	}
	return cbor.Unmarshal(item, out)
}

func (c bareClient) echo(_ context.Context, data []byte) ([]byte, error) {
	var out echoed
	err := c.call(bareEcho, echoed{Data: data}, &out)
	return out.Data, err
}

func (c bareClient) send(_ context.Context, arg argument) (out uint64, err error) {
	return out, errors.Join(c.call(bareSend, echoed{Data: arg.bytes}, &out))
}

func (c bareClient) Close() error {
	var errs []error
	for range cap(c) {
		errs = append(errs, (<-c).Close())
	}
	return errors.Join(errs...)
}
