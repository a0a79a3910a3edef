package gateway

import (
	"net/http"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway/internal/statuswriter"
)

// WithStall returns a handler for requests without a body, whose connections end if the client does not read the answer, or
// does not send the body that it announced, for the stall time.
func WithStall(next http.Handler, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sw := statuswriter.New(w, r, stall)
		defer sw.Finish()
		if r.ContentLength != 0 {
			sw.Header().Set("Connection", "close")
			http.Error(sw, "a request here has no body", http.StatusBadRequest)
			return
		}
		next.ServeHTTP(sw, r)
	})
}
