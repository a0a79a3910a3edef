package wire

import (
	"fmt"
	"sync"
)

// Budget bounds something that all connections of a process have together: descriptors, or bytes. Each connection has
// an [Account] of it. An account gets at most twice of what is free after it: one alone has two thirds of the budget,
// two have two fifths each, and something is always left for the next. Its methods are safe for concurrent use; a nil
// *Budget bounds and counts nothing.
type Budget struct {
	what        string
	limit, each int64

	mu      sync.Mutex
	used    int64
	refused uint64
}

// budgetShare is how many times as much as what is free one account may have.
const budgetShare = 2

// NewBudget makes a budget of so many of what, a plural noun for errors, of which one account may have at most each; 0
// stands for no other bound than that of the share.
func NewBudget(what string, limit, each int64) *Budget {
	return &Budget{what: what, limit: limit, each: each}
}

// BudgetUse is a budget at one moment.
type BudgetUse struct {
	// Used is how much is counted, Limit how much may be. Each bounds one account; 0 for no bound of its own.
	Used, Limit, Each int64
	// Refused counts what found no room so far.
	Refused uint64
}

// Use returns what is counted at the moment.
func (b *Budget) Use() BudgetUse {
	if b == nil {
		return BudgetUse{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return BudgetUse{Used: b.used, Limit: b.limit, Each: b.each, Refused: b.refused}
}

// Refuse counts one more that found no room, for a reason that the budget does not know.
func (b *Budget) Refuse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
}

// Account returns an account with nothing on it.
func (b *Budget) Account() *Account { return &Account{budget: b} }

// Account is what one connection has of a [Budget]. A nil *Account is one of no budget.
type Account struct {
	budget *Budget
	used   int64 // guarded by budget.mu
}

// Take counts n more, or says by an [ErrBudget] why there is no room.
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

// Give takes n off the count.
func (a *Account) Give(n int64) {
	if a == nil || a.budget == nil || n == 0 {
		return
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.budget.used -= n
	a.used -= n
}

// Charge is what one message counts on an [Account]. A nil *Charge counts nothing.
type Charge struct {
	of   *Account
	n    int64
	refs int // guarded by the budget's lock
}

// newCharge takes over what was taken; nil where nothing is counted.
func newCharge(a *Account, n int64) *Charge {
	if a == nil || a.budget == nil || n == 0 {
		return nil
	}
	return &Charge{of: a, n: n, refs: 1}
}

// hold keeps the count for one more Release.
func (c *Charge) hold() *Charge {
	if c != nil {
		c.of.budget.mu.Lock()
		defer c.of.budget.mu.Unlock()
		c.refs++
	}
	return c
}

// Release takes the message off the count, once all that hold the charge have released it. Each calls it once.
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
