// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain tells why a pod gets no Node, Host by Host. Core itself says that
// no instance type had an available offering, and not why there is none.
package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// Reason of the event.
const Reason = "NoHostFits"

const (
	// pause is how long nothing more is said about a pod, as core does it.
	pause = 5 * time.Minute
	// most pods that are explained within a breath: a thousand pods of one
	// deployment fail for one reason.
	most   = 50
	breath = 10 * time.Second
	// longest text of an event.
	longest = 1000
)

// Recorder passes events on. Beside core's word that a pod could not be scheduled
// it says which Hosts there are and what speaks against each.
type Recorder struct {
	events.Recorder
	kube      client.Client
	instances *instance.Provider
	clock     clock.Clock

	mu    sync.Mutex
	told  map[types.UID]time.Time
	since time.Time
	count int
}

// Decorate makes the Recorder.
func Decorate(recorder events.Recorder, kube client.Client, instances *instance.Provider, c clock.Clock) *Recorder {
	return &Recorder{Recorder: recorder, kube: kube, instances: instances, clock: c, told: map[types.UID]time.Time{}}
}

// Publish implements events.Recorder.
func (r *Recorder) Publish(published ...events.Event) {
	r.Recorder.Publish(published...)
	for _, event := range published {
		pod, ok := event.InvolvedObject.(*corev1.Pod)
		if !ok || event.Reason != events.FailedScheduling || !r.mayTell(pod.UID) {
			continue
		}
		// Core publishes without a context; all that is read is in memory.
		if why := r.explain(context.Background(), pod); why != "" {
			r.Recorder.Publish(events.Event{
				InvolvedObject: pod, Type: corev1.EventTypeWarning, Reason: Reason, Message: why,
				DedupeValues: []string{string(pod.UID)}, DedupeTimeout: pause,
			})
		}
	}
}

// mayTell bounds how much is said.
func (r *Recorder) mayTell(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if now.Sub(r.since) > breath {
		r.since, r.count = now, 0
		for uid, at := range r.told {
			if now.Sub(at) > pause {
				delete(r.told, uid)
			}
		}
	}
	if _, told := r.told[pod]; told || r.count >= most {
		return false
	}
	r.told[pod] = now
	r.count++
	return true
}

// explain asks every NodePool of ours; empty when a Host has room, and something
// else is in the way.
func (r *Recorder) explain(ctx context.Context, pod *corev1.Pod) string {
	pools := &karpv1.NodePoolList{}
	if err := r.kube.List(ctx, pools); err != nil {
		return ""
	}
	var reasons []string
	for i := range pools.Items {
		reason, concerns := r.inPool(ctx, pod, &pools.Items[i])
		if concerns && reason == "" {
			return ""
		}
		if concerns {
			reasons = append(reasons, fmt.Sprintf("NodePool %s: %s", pools.Items[i].Name, reason))
		}
	}
	slices.Sort(reasons)
	text := strings.Join(reasons, "; ")
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest-3], "") + "..."
	}
	return text
}

// inPool tells why a NodePool has no room for the pod. Pools that are not for it
// do not concern us: core names what keeps the pod out.
func (r *Recorder) inPool(ctx context.Context, pod *corev1.Pod, pool *karpv1.NodePool) (reason string, concerns bool) {
	template := pool.Spec.Template
	if template.Spec.NodeClassRef == nil || template.Spec.NodeClassRef.Group != v1alpha1.Group || !pool.DeletionTimestamp.IsZero() ||
		scheduling.Taints(template.Spec.Taints).ToleratesPod(pod) != nil {
		return "", false
	}
	wanted := scheduling.NewNodeSelectorRequirementsWithMinValues(template.Spec.Requirements...)
	wanted.Add(scheduling.NewLabelRequirements(template.Labels).Values()...)
	wanted.Add(scheduling.NewLabelRequirements(map[string]string{karpv1.NodePoolLabelKey: pool.Name}).Values()...)
	podWants := scheduling.NewPodRequirements(pod)
	if wanted.Compatible(podWants, scheduling.AllowUndefinedWellKnownLabels) != nil {
		return "", false
	}
	wanted.Add(podWants.Values()...)
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := r.kube.Get(ctx, types.NamespacedName{Name: template.Spec.NodeClassRef.Name}, class); err != nil {
		return fmt.Sprintf("ProxmoxNodeClass %s does not exist", template.Spec.NodeClassRef.Name), client.IgnoreNotFound(err) == nil
	}
	if ready := class.StatusConditions().Root(); !ready.IsTrue() {
		return fmt.Sprintf("ProxmoxNodeClass %s is not ready: %s", class.Name, ready.Message), true
	}
	claim := &karpv1.NodeClaim{}
	claim.Labels = map[string]string{karpv1.NodePoolLabelKey: pool.Name}
	claim.Spec.Requirements = wanted.NodeSelectorRequirements()
	claim.Spec.Resources.Requests = resources.Merge(resources.RequestsForPods(pod), corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")})
	if err := r.instances.RoomFor(claim, class); err != nil {
		return err.Error(), true
	}
	return "", true
}
