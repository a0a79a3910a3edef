package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/retry"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
)

// lease holds a version at the source: while it is fetched, and later as the base of deltas to the next version.
type lease struct {
	ID       string `json:"lease"`
	Version  uint64 `json:"version"`
	ServerID string `json:"server_id"`

	length  time.Duration
	source  *source
	stop    context.CancelFunc
	running sync.WaitGroup
}

// takeLease acquires a lease on a version; 0 means the newest. It returns nil if the source grants none. The version
// can then be freed during the transfer, which is detected.
func (s *source) takeLease(ctx context.Context, version uint64, length time.Duration) (*lease, error) {
	l := &lease{source: s, length: length}
	err := s.again(ctx, func() (bool, error) {
		err := s.object(ctx, http.MethodPost, s.path(version, fmt.Sprintf("/leases?seconds=%d", int(length.Seconds()))), l)
		var status *store.StatusError
		if errors.As(err, &status) && (status.Status == http.StatusTooManyRequests || status.Status == http.StatusNotFound) {
			return false, nil // if the version is missing, the manifest request reports it
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

// path returns the path to renew and end the lease.
func (l *lease) path() string { return "/v1/leases/" + url.PathEscape(l.ID) }

// renew renews the lease until ctx ends or the source has dropped it.
func (l *lease) renew(ctx context.Context) {
	for retry.Sleep(ctx, l.length/4) == nil {
		if err := l.source.object(ctx, http.MethodPost, l.path(), &struct{}{}); errors.Is(err, ErrNotFound) {
			return
		}
	}
}

// end releases the lease. It waits at most a second; a lease that cannot be released expires. Ending nil does nothing.
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
