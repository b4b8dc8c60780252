// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checksum reads the checksums of ProxmoxTemplates with a checksumURL and writes
// them to the status. A checksum that changed there creates a new Template.
package checksum

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
)

const (
	// checkInterval is how often a checksum is read.
	checkInterval = 6 * time.Hour
	// mismatchInterval is how often it is read while an image does not match it: the image
	// may have been replaced since.
	mismatchInterval = 5 * time.Minute
)

// Downloads reports on the downloads of images.
type Downloads interface {
	// HasChecksumMismatch reports whether a download of the image of a ProxmoxTemplate
	// did not have the expected checksum.
	HasChecksumMismatch(uid string) bool
}

// Controller writes the checksums of ProxmoxTemplates.
type Controller struct {
	kube      client.Client
	downloads Downloads
	recorder  events.Recorder
	clock     clock.PassiveClock
	web       *http.Client
}

// NewController returns a Controller. It reads checksums with the given transport; nil: with the proxy of the environment.
func NewController(kube client.Client, downloads Downloads, recorder events.Recorder, c clock.PassiveClock, web http.RoundTripper) *Controller {
	return &Controller{kube: kube, downloads: downloads, recorder: recorder, clock: c, web: &http.Client{Timeout: timeout, Transport: web}}
}

// Register adds the Controller to the manager. Changes of the status do not trigger it,
// because each run may send a request.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("template.checksum.proxmox").
		For(&v1alpha1.ProxmoxTemplate{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile reads the checksum of one ProxmoxTemplate if it is due.
func (c *Controller) Reconcile(ctx context.Context, t *v1alpha1.ProxmoxTemplate) (reconcile.Result, error) {
	if !t.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	stored := t.DeepCopy()
	var after time.Duration
	if t.Spec.SourceImage.ChecksumURL == "" {
		t.Status.Checksum = nil
		if err := t.StatusConditions().Clear(v1alpha1.ConditionChecksumResolved); err != nil {
			return reconcile.Result{}, fmt.Errorf("removing condition %s: %w", v1alpha1.ConditionChecksumResolved, err)
		}
	} else {
		after = c.resolve(ctx, t)
	}
	if !equality.Semantic.DeepEqual(stored.Status, t.Status) {
		// Optimistic lock, because the patch replaces the whole list of conditions.
		err := c.kube.Status().Patch(ctx, t, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsConflict(err) {
			// Another controller wrote first: retry with the new object.
			return reconcile.Result{RequeueAfter: watch.Soon}, nil
		}
		if err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		c.publishChange(stored, t)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// resolve reads the checksum if it is due, and returns after which time to check again.
// If that fails, the checksum that was read before stays in use.
func (c *Controller) resolve(ctx context.Context, t *v1alpha1.ProxmoxTemplate) time.Duration {
	source, conditions, now := t.Spec.SourceImage, t.StatusConditions(), c.clock.Now()
	if t.Source().Checksum == "" {
		t.Status.Checksum = nil // of another file
	} else if resolved := conditions.Get(v1alpha1.ConditionChecksumResolved); resolved.IsTrue() {
		interval := checkInterval
		if c.downloads.HasChecksumMismatch(string(t.UID)) {
			interval = mismatchInterval
		}
		if age := now.Sub(t.Status.Checksum.LastCheckTime.Time); age < interval {
			// A mismatch may be found earlier.
			return min(interval-age, mismatchInterval)
		}
	}
	known := sum{}
	if last := t.Status.Checksum; last != nil {
		known = sum{algorithm: last.Type, value: last.Value}
	}
	resolved, err := c.read(ctx, source.ChecksumURL, source.FileName(), known)
	if err != nil {
		conditions.SetFalse(v1alpha1.ConditionChecksumResolved, v1alpha1.ReasonChecksumUnavailable,
			fmt.Sprintf("reading spec.sourceImage.checksumURL %s: %v", redact(source.ChecksumURL), err))
		return watch.Again
	}
	t.Status.Checksum = &v1alpha1.ResolvedChecksum{
		URL: source.ChecksumURL, FileName: source.FileName(), Type: resolved.algorithm, Value: resolved.value, LastCheckTime: metav1.NewTime(now),
	}
	conditions.SetTrue(v1alpha1.ConditionChecksumResolved)
	return mismatchInterval
}

// publishChange emits an event if the same file lists another checksum than before.
func (c *Controller) publishChange(before, after *v1alpha1.ProxmoxTemplate) {
	from, to := before.Source(), after.Source()
	if from.Checksum == "" || from.ChecksumURL != to.ChecksumURL || from.Checksum == to.Checksum {
		return
	}
	c.recorder.Publish(event.Normal(after, v1alpha1.EventImageChecksumChanged,
		fmt.Sprintf("%s lists another %s for %s, %s: a new template is built and Nodes drift",
			redact(to.ChecksumURL), to.ChecksumType, to.FileName(), to.Checksum), to.Checksum))
}
