// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestIsTransient(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		nil:                        false,
		proxmox.ErrLocked:          true,
		proxmox.ErrBusy:            true,
		proxmox.ErrUnknownOutcome:  true,
		proxmox.ErrConflict:        true,
		proxmox.ErrHostUnreachable: true,
		proxmox.ErrUnreachable:     true,
		proxmox.ErrNoQuorum:        true,
		proxmox.ErrNoTime:          true,
		proxmox.ErrUnauthorized:    true,
		context.Canceled:           true,
		context.DeadlineExceeded:   true,
		proxmox.ErrNotFound:        false,
		proxmox.ErrExists:          false,
		proxmox.ErrRunning:         false,
		proxmox.ErrNotRunning:      false,
		proxmox.ErrProtected:       false,
		proxmox.ErrRootOnly:        false,
		proxmox.ErrStorageFull:     false,
		proxmox.ErrTaskCanceled:    false,
		proxmox.ErrFailed:          false,
		&proxmox.ForbiddenError{}:  false,
		&proxmox.InvalidError{}:    false,
		errors.New("other"):        false,
	} {
		t.Run(fmt.Sprint(err), func(t *testing.T) {
			t.Parallel()
			if err != nil {
				err = fmt.Errorf("reading: %w", err)
			}
			NewWithT(t).Expect(proxmox.IsTransient(err)).To(Equal(want))
		})
	}
}
