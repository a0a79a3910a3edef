package gateway

import (
	"fmt"
	"time"
)

// SyncInterval is the time between syncs of streams to the disk, or Always.
type SyncInterval time.Duration

// Always is the SyncInterval that syncs each message before it is acknowledged.
const Always SyncInterval = 0

// always is the text of Always.
const always = "always"

// leastSync is the minimum of a SyncInterval other than Always.
const leastSync = 100 * time.Millisecond

// Set implements pflag.Value.
func (s *SyncInterval) Set(text string) error {
	if text == always {
		*s = Always
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < leastSync {
		return fmt.Errorf("%q is neither %q nor a duration of at least %v", text, always, leastSync)
	}
	*s = SyncInterval(d)
	return nil
}

// String implements pflag.Value.
func (s *SyncInterval) String() string {
	if *s == Always {
		return always
	}
	return time.Duration(*s).String()
}

// Type implements pflag.Value.
func (*SyncInterval) Type() string { return "duration" }
