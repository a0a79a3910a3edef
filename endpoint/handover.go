package endpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/handover"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// HandoverOptions configure [Server.Handover]. The zero value is valid.
type HandoverOptions struct {
	// Command starts the successor. Nil means the program of this process with the same arguments, environment and
	// standard streams: the file that has the program's path now, which may be a new build. Handover adds a descriptor
	// and an environment variable to the command.
	Command *exec.Cmd
	// Drain limits the time for requests and tasks in flight after the successor serves; 0 means 10 s.
	Drain time.Duration
	// Serving, if not nil, is called with the process id of the successor when it serves.
	Serving func(pid int)
	// Ended, if not nil, is called with the exit status of a successor that has served, if it ends before this process.
	Ended func(*os.ProcessState)
}

// Handover replaces this server by one in a new process, without a moment in which clients cannot connect. The new process
// calls [NewServer] with the same socket, which takes over the listening socket and the published versions with their
// memory, and then [Server.Serve]. Publications wait meanwhile. When the successor serves, the clients of this server
// connect to it, renew their leases, and repeat requests that had not begun. Requests and tasks in flight end here. Then
// Serve returns [ErrServerClosed], and Handover nil or the error of [Server.Shutdown].
//
// If the successor ends before it serves, or ctx ends, this server continues, and Handover returns why. References to
// managed objects, cached results and tasks are not handed over. A process hands over one server.
func (s *Server) Handover(ctx context.Context, opts HandoverOptions) error {
	if !s.core.Bound() || !s.core.Serving() {
		return status.Configuration(fmt.Errorf("%w: only a server that serves can be replaced", status.ErrInvalid))
	}
	if !s.replacing.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: another handover runs", status.ErrInUse)
	}
	defer s.replacing.Store(false)
	cmd, err := successorCommand(opts.Command)
	if err != nil {
		return err
	}
	next, err := handover.Start(cmd, s.Socket())
	if err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	status.Reach("upgrade started")
	if err := s.handTo(ctx, next); err != nil {
		return fmt.Errorf("hand over: %w; this server continues", err)
	}
	defer next.Close()
	if opts.Serving != nil {
		opts.Serving(next.PID())
	}
	if opts.Ended != nil {
		go func() { opts.Ended(next.Ended()) }()
	}
	drain := opts.Drain
	if drain == 0 {
		drain = handoverDrain
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return s.core.Drain(limited, handoverLinger, func() {
		s.core.Models.Left() // after the goodbyes, so that clients repeat waiting publications on another connection
		if err := next.Done(); err != nil {
			s.core.Log.Warn("the successor has ended", "pid", next.PID(), "error", err)
		}
		status.Reach("upgrade left")
	})
}

// handoverDrain is the time that requests and tasks in flight usually have to finish.
const handoverDrain = 10 * time.Second

// handoverLinger is the time that clients have to close their connections before the predecessor ends.
const handoverLinger = 5 * time.Second

// successorCommand returns the command of a successor.
func successorCommand(cmd *exec.Cmd) (*exec.Cmd, error) {
	if cmd == nil {
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cmd = exec.Command(program, os.Args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if cmd.Env == nil {
		cmd.Env = handover.Environment()
	}
	return cmd, nil
}

// handTo passes the socket and the versions to a successor and returns when it serves. If that fails, the successor has
// ended and this server continues.
func (s *Server) handTo(ctx context.Context, next *handover.Successor) error {
	err := next.Await(ctx, false)
	if err != nil {
		next.Abort()
		return err
	}
	status.Reach("upgrade requested")
	state := new(handover.State)
	defer state.Close()
	if err = s.core.HandOverSocket(state); err == nil {
		state.Catalog, state.Files, err = s.core.Models.HandOver(ctx, s.core.ID)
	}
	if err != nil {
		next.Abort()
		return err
	}
	status.Reach("upgrade frozen")
	if err = next.Send(state); err == nil {
		status.Reach("upgrade sent")
		err = next.Await(ctx, true)
	}
	if err != nil {
		next.Abort()
		return errors.Join(err, s.core.Models.Resume())
	}
	status.Reach("upgrade committed")
	s.core.LeaveSocket()
	return nil
}

// Inherited returns the socket of the server that this process is to replace: [Server.Handover] of another process has
// started it. It returns an empty path otherwise.
func Inherited() (socket string) {
	if p := handover.Inherited(); p != nil {
		return p.Socket
	}
	return ""
}

// takeOver takes the socket and the versions of the predecessor of this process. It returns false if there is none, or if
// it has ended before it handed anything over.
func (s *Server) takeOver(opts ServerOptions) (bool, error) {
	p := handover.Inherited()
	if p == nil || opts.Listener != nil {
		return false, nil
	}
	if s.core.Sessions.Socket == "" {
		s.core.Sessions.Socket = p.Socket
	}
	if s.core.Sessions.Socket != p.Socket {
		return false, nil
	}
	state, err := p.Take()
	if errors.Is(err, handover.ErrPredecessorGone) {
		s.core.Log.Warn("the owner to be replaced has ended", "socket", p.Socket)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take over from another process: %w", err)
	}
	defer state.Close()
	status.Reach("upgrade received")
	if err := s.core.Inherit(p.Socket, state); err != nil {
		return false, err
	}
	s.predecessor = p
	s.adopted, err = s.core.Models.AdoptHanded(state.Catalog, state.Files, opts.Keep)
	state.Files = nil
	status.Reach("upgrade adopted")
	return true, err
}

// begin makes this server the owner of the socket.
func (s *Server) begin() error {
	if p := s.predecessor; p != nil {
		s.predecessor = nil
		if err := s.core.OwnSocket(); err != nil {
			return err
		}
		status.Reach("upgrade ready")
		p.Serve()
		status.Reach("upgrade serving")
	}
	s.core.Models.Serve()
	return nil
}
