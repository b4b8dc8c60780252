// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

func TestWithPinning(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	overhead := cloudprovider.InstanceTypeOverhead{KubeReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}
	pinned := instance.Intent{Binding: &instance.Binding{Cells: []vmconfig.Cell{{VCPUs: 2}}, CPUs: "2-3"}}
	g.Expect(withPinning(kubeletconfig.KubeletConfiguration{}, pinned, overhead)).To(And(
		HaveField("CPUManagerPolicy", "static"), HaveField("TopologyManagerPolicy", "best-effort")))

	own := kubeletconfig.KubeletConfiguration{CPUManagerPolicy: "none", TopologyManagerPolicy: "restricted"}
	g.Expect(withPinning(own, pinned, overhead)).To(Equal(own), "the settings of the class take precedence")

	floating := instance.Intent{Binding: &instance.Binding{Cells: []vmconfig.Cell{{VCPUs: 2}}}}
	g.Expect(withPinning(kubeletconfig.KubeletConfiguration{}, floating, overhead)).To(Equal(kubeletconfig.KubeletConfiguration{}), "bound memory without pinned cores")
	g.Expect(withPinning(kubeletconfig.KubeletConfiguration{}, instance.Intent{}, overhead)).To(Equal(kubeletconfig.KubeletConfiguration{}))
	g.Expect(withPinning(kubeletconfig.KubeletConfiguration{}, pinned, cloudprovider.InstanceTypeOverhead{})).To(Equal(kubeletconfig.KubeletConfiguration{}),
		"a kubelet without reserved CPUs does not start with the static policy")
}
