// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestGuardDeleteCancelsLaunch(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	guard := NewGuard()
	ctx, release, ok := guard.AcquireLaunch(t.Context(), "uid")
	g.Expect(ok).To(BeTrue())
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		release()
	}()
	done, ok := guard.AcquireDelete(t.Context(), "uid")
	g.Expect(ok).To(BeTrue())
	g.Expect(<-ended).To(MatchError(ErrClaimDeleting))
	_, _, ok = guard.AcquireLaunch(t.Context(), "uid")
	g.Expect(ok).To(BeFalse(), "no launch while a delete holds the claim")
	done()
	g.Expect(guard.entries).To(BeEmpty(), "entries of released claims are removed")
}

func TestGuardAcquireDeleteTimeout(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	guard := NewGuard()
	_, release, ok := guard.AcquireLaunch(t.Context(), "uid")
	g.Expect(ok).To(BeTrue())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, ok = guard.AcquireDelete(ctx, "uid")
	g.Expect(ok).To(BeFalse())
	release()
	g.Expect(guard.entries).To(BeEmpty())
}

func TestGuardAcquireLaunchExclusive(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	guard := NewGuard()
	var mu sync.Mutex
	holders, most := 0, 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, release, ok := guard.AcquireLaunch(t.Context(), "uid")
			if !ok {
				return
			}
			mu.Lock()
			holders++
			most = max(most, holders)
			mu.Unlock()
			mu.Lock()
			holders--
			mu.Unlock()
			release()
		})
	}
	wg.Wait()
	g.Expect(most).To(Equal(1))
}
