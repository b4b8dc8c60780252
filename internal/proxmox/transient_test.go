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
	for want, errs := range map[bool][]error{
		true: {
			proxmox.ErrLocked, proxmox.ErrBusy, proxmox.ErrUnknownOutcome, proxmox.ErrConflict, proxmox.ErrHostUnreachable,
			proxmox.ErrUnreachable, proxmox.ErrNoQuorum, proxmox.ErrNoTime, proxmox.ErrUnauthorized, context.Canceled, context.DeadlineExceeded,
		},
		false: {
			nil, proxmox.ErrNotFound, proxmox.ErrExists, proxmox.ErrRunning, proxmox.ErrNotRunning, proxmox.ErrProtected,
			proxmox.ErrRootOnly, proxmox.ErrStorageFull, proxmox.ErrTaskCanceled, proxmox.ErrFailed,
			&proxmox.ForbiddenError{}, &proxmox.InvalidError{}, errors.New("other"),
		},
	} {
		for _, err := range errs {
			if err != nil {
				err = fmt.Errorf("reading: %w", err)
			}
			NewWithT(t).Expect(proxmox.IsTransient(err)).To(Equal(want), "%v", err)
		}
	}
}
