package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
)

// lease is a version that the source keeps for this mirror: while it is fetched, and then as the base of the deltas to
// the next.
type lease struct {
	ID       string `json:"lease"`
	Version  uint64 `json:"version"`
	ServerID string `json:"server_id"`

	length  time.Duration
	source  *source
	stop    context.CancelFunc
	running sync.WaitGroup
}

// takeLease has the source keep a version; 0 stands for the newest. It returns nil where the source cannot: then the
// version may go while it is fetched, which is noticed.
func (s *source) takeLease(ctx context.Context, version uint64, length time.Duration) (*lease, error) {
	l := &lease{source: s, length: length}
	err := s.again(ctx, func() (bool, error) {
		err := s.object(ctx, http.MethodPost, s.path(version, fmt.Sprintf("/leases?seconds=%d", int(length.Seconds()))), l)
		var status *store.StatusError
		if errors.As(err, &status) && (status.Status == http.StatusTooManyRequests || status.Status == http.StatusNotFound) {
			return false, nil // a manifest that is not there either will say so
		}
		return false, err
	})
	if err != nil || l.ID == "" {
		return nil, err
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.running.Go(func() { l.renew(renewing) })
	return l, nil
}

// path is where the lease is renewed and ended.
func (l *lease) path() string { return "/v1/leases/" + url.PathEscape(l.ID) }

// renew keeps the lease until ctx ends or the source does not know it any more.
func (l *lease) renew(ctx context.Context) {
	for sleep(ctx, l.length/4) == nil {
		if err := l.source.object(ctx, http.MethodPost, l.path(), &struct{}{}); errors.Is(err, ErrNotFound) {
			return
		}
	}
}

// end gives the lease back, within a second: one that cannot be given back ends by itself. Ending nil does nothing.
func (l *lease) end() {
	if l == nil {
		return
	}
	l.stop()
	l.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.source.object(ctx, http.MethodDelete, l.path(), nil)
}
