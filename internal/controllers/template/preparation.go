// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// CheckPreparation checks the boot data of a ProxmoxTemplate's builder VMs and returns the
// hash of the content of its Secrets.
type CheckPreparation func(ctx context.Context, t *v1alpha1.ProxmoxTemplate) (string, error)

// reconcilePreparation sets the status of the preparation: the hash of the boot data, and
// the time of the last refresh, a new one if the Templates are due. It returns why the boot
// data cannot be used, and after which time to check again.
func (c *Controller) reconcilePreparation(ctx context.Context, t *v1alpha1.ProxmoxTemplate, classes []v1alpha1.ProxmoxNodeClass) (problem string, after time.Duration) {
	if t.Spec.Prepare == nil || !t.DeletionTimestamp.IsZero() {
		c.preparations.Keep(func(uid types.UID) bool { return uid != t.UID })
		if t.Spec.Prepare == nil {
			t.Status.Preparation = nil
		}
		return "", 0
	}
	if t.Status.Preparation == nil {
		t.Status.Preparation = &v1alpha1.PreparationStatus{}
	}
	after = watch.Again
	hash, err := c.preparations.Get(ctx, t.UID, t.Generation, func(ctx context.Context) (string, error) { return c.check(ctx, t) })
	if err != nil {
		problem = err.Error()
	} else {
		t.Status.Preparation.BootDataHash = hash
	}
	due, left := c.templates.RefreshDue(template.NewDesired(t, classes))
	if due {
		t.Status.Preparation.RefreshedAt = new(metav1.NewTime(c.templates.Clock().Now().UTC().Truncate(time.Second)))
	} else if left > 0 {
		after = min(after, left)
	}
	return problem, after
}
