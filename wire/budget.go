package wire

import (
	"fmt"
	"sync"
)

// Budget limits a resource that all connections of a process share: descriptors or bytes. Each connection has an
// [Account]. An account may hold at most twice the amount that remains free: a single account gets two thirds of the
// budget, two get two fifths each, and some room always remains for the next. Its methods are safe for concurrent use.
// A nil *Budget counts nothing and has no limit.
type Budget struct {
	what        string
	limit, each int64

	mu      sync.Mutex
	used    int64
	refused uint64
}

// budgetShare is the maximum ratio of one account to the free amount.
const budgetShare = 2

// NewBudget returns a budget of limit units. what is their plural noun, for errors. each limits one account; 0 means
// that only the share applies.
func NewBudget(what string, limit, each int64) *Budget {
	return &Budget{what: what, limit: limit, each: each}
}

// BudgetUse is a snapshot of a budget.
type BudgetUse struct {
	// Used is the amount counted, Limit its maximum. Each limits one account; 0 means no separate limit.
	Used, Limit, Each int64
	// Refused counts the requests that did not fit.
	Refused uint64
}

// Use returns a snapshot.
func (b *Budget) Use() BudgetUse {
	if b == nil {
		return BudgetUse{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return BudgetUse{Used: b.used, Limit: b.limit, Each: b.each, Refused: b.refused}
}

// Refuse counts one refusal whose reason lies outside the budget.
func (b *Budget) Refuse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
}

// Account returns an empty account.
func (b *Budget) Account() *Account { return &Account{budget: b} }

// Account is the share of one connection in a [Budget]. A nil *Account counts nothing.
type Account struct {
	budget *Budget
	used   int64 // guarded by budget.mu
}

// Take adds n to the account. It returns an [ErrBudget] with the reason if n does not fit.
func (a *Account) Take(n int64) error {
	if a == nil || a.budget == nil || n == 0 {
		return nil
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case a.used+n > budgetShare*(b.limit-b.used-n):
		b.refused++
		return fmt.Errorf("%w: %d %s more, this client has %d in flight, all together have %d, and there may be %d",
			ErrBudget, n, b.what, a.used, b.used, b.limit)
	case b.each > 0 && a.used > 0 && a.used+n > b.each:
		b.refused++
		return fmt.Errorf("%w: %d %s more, this client has %d in flight and may have %d", ErrBudget, n, b.what, a.used, b.each)
	}
	b.used += n
	a.used += n
	return nil
}

// Give subtracts n from the account.
func (a *Account) Give(n int64) {
	if a == nil || a.budget == nil || n == 0 {
		return
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.budget.used -= n
	a.used -= n
}

// Charge is the amount that one message holds on an [Account]. A nil *Charge counts nothing.
type Charge struct {
	of   *Account
	n    int64
	refs int // guarded by the budget's lock
}

// newCharge takes ownership of n units that were taken from a. It returns nil if nothing is counted.
func newCharge(a *Account, n int64) *Charge {
	if a == nil || a.budget == nil || n == 0 {
		return nil
	}
	return &Charge{of: a, n: n, refs: 1}
}

// hold adds a reference, which requires one more Release.
func (c *Charge) hold() *Charge {
	if c != nil {
		c.of.budget.mu.Lock()
		defer c.of.budget.mu.Unlock()
		c.refs++
	}
	return c
}

// Release drops one reference. The amount is returned to the account with the last one. Each holder calls it once.
func (c *Charge) Release() {
	if c == nil {
		return
	}
	c.of.budget.mu.Lock()
	c.refs--
	last := c.refs == 0
	c.of.budget.mu.Unlock()
	if last {
		c.of.Give(c.n)
	}
}
