// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestLaunchMaxPods checks that the kubelet gets the pods that the instance type claims.
func TestLaunchMaxPods(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		instanceType string
		class        *v1alpha1.KubeletConfiguration
		want         string
	}{
		"small_type":         {instanceType: "c1.1VCPU-2GB", want: "maxPods=64;"},
		"default_of_kubelet": {instanceType: testenv.InstanceType, want: "maxPods=0;"},
		"set_in_NodeClass":   {instanceType: "c1.1VCPU-2GB", class: &v1alpha1.KubeletConfiguration{MaxPods: new(int32(110))}, want: "maxPods=110;"},
		"unset_in_NodeClass": {instanceType: "c1.1VCPU-2GB", class: &v1alpha1.KubeletConfiguration{ClusterDNS: []string{"10.96.0.10"}}, want: "maxPods=64;"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			secret := &corev1.Secret{}
			w.Expect(w.Kube.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: testenv.TemplatesSecret}, secret)).To(Succeed())
			secret.Data["user-data"] = []byte("#cloud-config\n# maxPods={{ .Kubernetes.KubeletConfiguration.MaxPods }};\n")
			w.Expect(w.Kube.Update(t.Context(), secret)).To(Succeed())
			w.NodeClass.Spec.KubeletConfiguration = test.class
			claim := w.StartProcess().Launched("pool-abc", w.NodeClass, func(claim *karpv1.NodeClaim) {
				claim.Spec.Requirements[0].Values = []string{test.instanceType}
			})
			w.Expect(w.Booted(w.Intent(claim).VMID).CDROM).To(ContainSubstring(test.want))
		})
	}
}
