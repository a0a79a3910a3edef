package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// handshakeError adds the likely cause to the error of a failed handshake.
func handshakeError(err error) error {
	var refused *message.Error
	if errors.As(err, &refused) {
		return fmt.Errorf("owner: %w", status.DecodeError(refused))
	}
	switch {
	case errors.Is(err, status.ErrProtocol), errors.Is(err, status.ErrUnavailable):
		return err
	case errors.Is(err, message.ErrEncoding):
		return fmt.Errorf("%w: %w", status.ErrProtocol, err)
	}
	return fmt.Errorf("%w: %w", status.ErrUnavailable, err)
}

var errOwnerLeft = fmt.Errorf("%w: the owner is shutting down", status.ErrUnavailable)

// fail ends the link and all its waiters.
func (l *Link) fail(err error) {
	err = lost(err)
	l.mu.Lock()
	l.endLocked(err) // before the connection is closed, so that a request that fails to send gets the reason
	l.mu.Unlock()
	l.conn.Close()
	var done []func(wire.Frame, error)
	l.mu.Lock()
	err = l.err
	for _, w := range l.pending {
		switch {
		case w.done != nil:
			done = append(done, w.done)
		case !w.abandoned:
			close(w.answer)
		}
	}
	l.pending, l.events = nil, nil
	l.mu.Unlock()
	l.Slabs.Close()
	for _, f := range done {
		f(wire.Frame{}, err)
	}
}

// lost wraps the error that ended a connection for its users.
func lost(err error) error {
	var remote *message.Error
	switch {
	case errors.Is(err, status.ErrProtocol), errors.As(err, &remote):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w: the connection ended", status.ErrUnavailable)
	}
	return fmt.Errorf("%w: %w", status.ErrUnavailable, err)
}

// sendError returns the error of a request that could not be sent. It prefers the reader's error to the writer's: an
// owner sends the reason before it closes the connection.
func (l *Link) sendError(ctx context.Context, err error) error {
	if errors.Is(err, wire.ErrNotSent) {
		return context.Cause(ctx)
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		select {
		case <-l.Over: // the reader has received everything that was sent
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if errors.Is(err, wire.ErrTooLarge) {
		return status.WithClass(status.ErrLimit, err)
	}
	return lost(err)
}

// farewellTime is the maximum time to send a goodbye. An owner that does not read it will see the end of the
// connection.
const farewellTime = 100 * time.Millisecond

// HangUp sends a goodbye, closes the link and returns when its goroutines have ended.
func (l *Link) HangUp() {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	_ = l.conn.SendContext(ctx, wire.KindGoodbye, 0, nil)
	l.Cut()
}

// Cut closes the link and returns when its goroutines have ended.
func (l *Link) Cut() {
	l.conn.Close()
	l.Wait()
}

// Wait returns when the link and its goroutines have ended.
func (l *Link) Wait() {
	<-l.Done
	l.queue.close()
}
