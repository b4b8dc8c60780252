// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// publish emits an event of the ProxmoxTemplate.
func (r *hostReconciler) publish(kind, reason, message string) {
	r.recorder.Publish(events.Event{
		InvolvedObject: &v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: r.desired.Name, UID: types.UID(r.desired.UID)}},
		Type:           kind,
		Reason:         reason,
		Message:        message,
		DedupeValues:   []string{r.desired.UID, r.Region, r.Host, message},
	})
}
