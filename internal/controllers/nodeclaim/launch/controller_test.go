// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestAffectedOfferings(t *testing.T) {
	t.Parallel()
	claim := &karpv1.NodeClaim{Spec: karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Name: "class"}}}
	plain := instance.Intent{Region: "r", Host: "h", InstanceType: "t"}
	retained, elsewhere := plain, plain
	retained.Retained = map[string]string{"data": "local-lvm:vm-1-data"}
	elsewhere.TemplateHost = "other"
	for name, test := range map[string]struct {
		reason string
		cause  error
		marks  bool
		class  string
		in     instance.Intent
	}{
		"start_failure":             {v1alpha1.EventStartFailed, nil, true, "class", plain},
		"unusable_template":         {v1alpha1.EventTemplateUnusable, nil, true, "class", plain},
		"invalid_boot_data":         {v1alpha1.EventBootDataFailed, nil, true, "class", plain},
		"storage_full":              {v1alpha1.EventStorageFull, nil, true, "", plain},
		"retained_disk_full":        {v1alpha1.EventStorageFull, nil, true, "class", retained},
		"unreachable_template_host": {v1alpha1.EventLaunchTimeout, proxmox.ErrHostUnreachable, true, "class", elsewhere},
		"no_quorum":                 {v1alpha1.EventLaunchTimeout, proxmox.ErrNoQuorum, true, "", elsewhere},
		"unreachable_host":          {v1alpha1.EventLaunchTimeout, proxmox.ErrHostUnreachable, true, "", plain},
		"missing_secret":            {v1alpha1.EventLaunchTimeout, errors.New("secret not found"), true, "class", plain},
		"VMID_taken":                {v1alpha1.EventVMIDTaken, nil, false, "", plain},
		"host_not_awake":            {v1alpha1.EventHostWakeFailed, nil, false, "", plain},
		"insufficient_capacity":     {v1alpha1.EventInsufficientCapacity, nil, false, "", plain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			what, marks := affectedOfferings(claim, test.in, test.reason, test.cause)
			g.Expect(marks).To(Equal(test.marks))
			g.Expect(what.NodeClass).To(Equal(test.class))
			g.Expect(what.InstanceType).To(BeEmpty())
		})
	}
}
