package natslink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// ErrStore means that an embedded server cannot write to its store, for example because its disk is full. The server
// then refuses all writes, even when there is space again, until it is restarted.
var ErrStore = errors.New("the embedded NATS server cannot write to its store: make room on its disk and start it again")

// A failure of a stream counts if it lasts for checkPatience.
const (
	checkPatience = 500 * time.Millisecond
	checkPause    = 50 * time.Millisecond
)

// errNoCluster is the state of a leaf node without its cluster.
var errNoCluster = errors.New("no connection to a leaf-node listener of the NATS cluster")

// Check returns nil if the server can store messages, and otherwise [ErrStore] with the reason. A server that is a leaf
// node needs a connection to its cluster.
func (s *Server) Check() error {
	if s.leaf {
		if s.ns.NumLeafNodes() == 0 {
			return errNoCluster
		}
		return nil
	}
	if !s.ns.JetStreamEnabled() {
		return fmt.Errorf("%w (it has closed the store: see its log)", ErrStore)
	}
	var err error
	for begin := time.Now(); ; time.Sleep(checkPause) {
		if err = s.checkStreams(); err == nil || time.Since(begin) > checkPatience {
			return err
		}
	}
}

// checkStreams returns the health that the server reports: an error for each folder of its store that is not a stream. A
// stream that a client creates or deletes at that moment is such a folder too, for a few milliseconds.
func (s *Server) checkStreams() error {
	// The server reports the state of its streams only through its monitoring handlers, which work without a listener.
	request, err := http.NewRequest(http.MethodGet, "/healthz", http.NoBody)
	if err != nil {
		return err
	}
	answer := &recorded{header: http.Header{}}
	s.ns.HandleHealthz(answer, request)
	if answer.status == 0 || answer.status == http.StatusOK {
		return nil
	}
	var health struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(answer.body.Bytes(), &health); err != nil {
		return fmt.Errorf("health of the embedded NATS server: %w", err)
	}
	return fmt.Errorf("%w (%s)", ErrStore, health.Error)
}

// recorded is an http.ResponseWriter that keeps the response in memory.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *recorded) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorded) WriteHeader(status int) { r.status = status }

// Write implements http.ResponseWriter.
func (r *recorded) Write(p []byte) (int, error) { return r.body.Write(p) }
