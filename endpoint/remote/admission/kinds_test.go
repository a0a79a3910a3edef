package admission_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/task"
)

// A call that ends because the owner has left matches context.Canceled too, and is no cancellation by the client.
func TestKindOfEndedContexts(t *testing.T) {
	for _, test := range []struct {
		err  error
		want admission.Kind
	}{
		{context.Canceled, admission.Canceled},
		{fmt.Errorf("call: %w", context.Canceled), admission.Canceled},
		{endpoint.ErrUnavailable, admission.Unavailable},
		{fmt.Errorf("call: %w", errors.Join(endpoint.ErrUnavailable, context.Canceled)), admission.Unavailable},
		{errors.Join(context.Canceled, endpoint.ErrUnavailable), admission.Unavailable},
		{errors.Join(endpoint.ErrUnavailable, context.DeadlineExceeded), admission.Timeout},
		{errors.Join(task.ErrCancelled, context.Canceled), admission.TaskState},
		{errors.Join(endpoint.ErrLimit, context.Canceled), admission.Canceled},
	} {
		require.Equal(t, test.want, admission.KindOf(test.err), test.err)
	}
}
