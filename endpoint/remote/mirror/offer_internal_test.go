package mirror

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowDeadline takes a while to set a deadline.
type slowDeadline struct {
	http.ResponseWriter
	began chan struct{}
	ended atomic.Bool
}

func (s *slowDeadline) SetWriteDeadline(time.Time) error {
	close(s.began)
	time.Sleep(50 * time.Millisecond)
	s.ended.Store(true)
	return nil
}

// The end of an offer uses an answer only until its handler returns.
func TestCutEndsBeforeHandler(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	o := &offer{ctx: ctx}
	w := &slowDeadline{ResponseWriter: httptest.NewRecorder(), began: make(chan struct{})}
	o.cutAtEnd(w)() // not cut
	done := o.cutAtEnd(w)
	cancel()
	<-w.began
	done()
	require.True(t, w.ended.Load())
}
