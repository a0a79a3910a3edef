package command

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// retainFlags are the flags that limit the superseded versions of a name that are kept without readers.
type retainFlags struct {
	versions int
	age      time.Duration
	size     string
	bytes    int64 // of size, after check
}

func (r *retainFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&r.versions, "retain", 0, "keep at most this number of superseded versions of each name without readers; 0 with another limit: any number")
	f.DurationVar(&r.age, "retain-age", 0, "keep superseded versions without readers for at most this time, such as 1h")
	f.StringVar(&r.size, "retain-bytes", "", "keep superseded versions without readers up to this size for each name, such as 40GiB")
}

// check refuses invalid values.
func (r *retainFlags) check(c *cobra.Command) error {
	switch {
	case r.versions < 0:
		return cli.Usagef(c, "--retain %d: it must be 0 or more", r.versions)
	case r.age < 0:
		return cli.Usagef(c, "--retain-age %v: it must not be negative", r.age)
	case r.size != "":
		var err error
		if r.bytes, err = term.ParseBytes(r.size); err != nil || r.bytes == 0 {
			return cli.Usagef(c, "--retain-bytes %q: use a size such as 40GiB", r.size)
		}
	}
	return nil
}

// limits returns the retention after check.
func (r *retainFlags) limits() endpoint.Retention {
	return endpoint.Retention{Versions: r.versions, Age: r.age, Bytes: r.bytes}
}
