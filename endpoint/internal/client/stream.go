package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Stream is the client's side of a stream. It queues items, at most the number that the owner was allowed to send.
type Stream struct {
	client *Client
	conn   *Conn
	id     uint64

	mu    sync.Mutex
	items []wire.Frame
	ended bool
	err   error // why it ended; io.EOF after the last item

	wake  chan struct{} // capacity 1
	taken uint64        // items taken since the last grant to the owner
}

// Stream starts a stream. The caller closes it.
func (c *Client) Stream(ctx context.Context, call Call) (s *Stream, err error) {
	err = c.onConn(ctx, func(conn *Conn) (err error) {
		s, err = c.streamOn(ctx, conn, call)
		return err
	})
	return s, err
}

// streamOn is Stream on conn.
func (c *Client) streamOn(ctx context.Context, conn *Conn, call Call) (*Stream, error) {
	ask, err := c.newCall(conn, message.OpStream, call)
	if err != nil {
		return nil, err
	}
	defer ask.close()
	s := &Stream{client: c, conn: conn, wake: make(chan struct{}, 1)}
	ask.Item = s.arrived
	if s.id, err = conn.start(ctx, ask.Request, s.finished); err != nil {
		return nil, err
	}
	conn.receiver.Listen(1)
	return s, nil
}

// arrived handles the frame of an item. It runs in the goroutine that reads the connection and takes ownership of the
// frame.
func (s *Stream) arrived(frame wire.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		frame.Files.Close()
		return nil
	}
	if len(s.items) >= 2*message.StreamWindow {
		frame.Files.Close()
		return fmt.Errorf("%w: the owner sent more stream items than allowed", status.ErrProtocol)
	}
	s.items = append(s.items, frame)
	s.signal()
	return nil
}

// finished handles the end of the stream. It is called once and takes ownership of the frame.
func (s *Stream) finished(frame wire.Frame, err error) error {
	if err == nil {
		err = io.EOF
		if frame.Kind == wire.KindError {
			err = notRun(status.RemoteError(frame))
		}
		frame.Files.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.signal()
	return nil
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next waits for the next item. The caller owns the frame. At the end it returns io.EOF.
func (s *Stream) Next(ctx context.Context) (wire.Frame, error) {
	for {
		s.mu.Lock()
		if len(s.items) > 0 {
			frame := s.items[0]
			s.items = s.items[1:]
			s.mu.Unlock()
			return frame, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return wire.Frame{}, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return wire.Frame{}, ended.Cause(ctx)
		}
	}
}

// Take decodes an item into out, or drops it if out is nil, and allows the owner to send more items.
func (s *Stream) Take(frame wire.Frame, out any) error {
	defer frame.Files.Close()
	if s.taken++; s.taken >= message.StreamWindow/2 {
		s.conn.sendNoReply(Request{Op: message.OpStreamMore, Body: message.StreamMore{Stream: s.id, Items: s.taken}})
		s.taken = 0
	}
	var item message.StreamItem
	if err := decodeAnswer(frame, &item); err != nil {
		return err
	}
	im := s.client.importer()
	im.Inline = s.conn.inline
	return decodeValue(im, item.Value, item.Handles, frame.Files, out)
}

var errStreamClosed = errors.New("the reader closed the stream")

// Close ends the stream and drops remaining items. If the owner has not ended the stream, Close cancels it with the
// cause of ctx.
func (s *Stream) Close(ctx context.Context) {
	s.mu.Lock()
	running := !s.ended && s.err == nil
	s.ended = true
	for _, frame := range s.items {
		frame.Files.Close()
	}
	s.items = nil
	s.mu.Unlock()
	s.conn.ignore(s.id)
	s.conn.receiver.Listen(-1)
	if running {
		why := errStreamClosed
		if ctx.Err() != nil {
			why = ended.Cause(ctx)
		}
		s.conn.cancel(s.id, why)
	}
}
