// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

const (
	uninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"
	nodeIPAnnotation   = "alpha.kubernetes.io/provided-node-ip"
	defaultMaxPods     = 110
	mebibyte           = 1 << 20
)

// newNode returns the Node that the kubelet registers.
func (k *kubelet) newNode() *corev1.Node {
	s := k.settings
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: s.nodeName, Labels: map[string]string{
			corev1.LabelHostname:      s.nodeName,
			corev1.LabelOSStable:      "linux",
			corev1.LabelArchStable:    k.arch,
			"beta.kubernetes.io/os":   "linux",
			"beta.kubernetes.io/arch": k.arch,
		}},
		Spec: corev1.NodeSpec{ProviderID: s.providerID, Taints: s.taints},
	}
	maps.Copy(node.Labels, s.labels)
	if ip := s.providedNodeIP(); ip != "" {
		node.Annotations = map[string]string{nodeIPAnnotation: ip}
	}
	if s.externalProvider {
		node.Spec.Taints = append(slices.Clip(node.Spec.Taints),
			corev1.Taint{Key: uninitializedTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	node.Status = k.nodeStatus(corev1.ConditionFalse, "KubeletNotReady", "the kubelet is starting")
	return node
}

// nodeStatus returns the status fields that the kubelet reports.
func (k *kubelet) nodeStatus(ready corev1.ConditionStatus, reason, message string) corev1.NodeStatus {
	now := metav1.Now()
	if ready != k.ready {
		k.ready, k.readySince = ready, now
	}
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string, since metav1.Time) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: since}
	}
	capacity := k.capacity()
	return corev1.NodeStatus{
		Capacity:    capacity,
		Allocatable: allocatable(capacity, k.settings.config),
		Conditions: []corev1.NodeCondition{
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available", k.startedAt),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure", k.startedAt),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available", k.startedAt),
			condition(corev1.NodeReady, ready, reason, message, k.readySince),
		},
		Addresses: k.nodeAddresses(),
		NodeInfo: corev1.NodeSystemInfo{
			MachineID:               strings.ReplaceAll(k.uuid, "-", ""),
			SystemUUID:              k.uuid,
			BootID:                  k.bootID,
			KernelVersion:           "6.8.0-simulated",
			OSImage:                 k.image,
			ContainerRuntimeVersion: "containerd://2.0.0-simulated",
			KubeletVersion:          k.version,
			OperatingSystem:         "linux",
			Architecture:            k.arch,
		},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
	}
}

// capacity returns the capacity as Linux reports it. Firmware and kernel reserve part
// of the memory, and the file system uses part of the disk for metadata.
func (k *kubelet) capacity() corev1.ResourceList {
	memory := max(0, k.memory-reservedMemory(k.memory))
	pods := int64(k.settings.config.MaxPods)
	if pods == 0 {
		pods = defaultMaxPods
	}
	if perCore := int64(k.settings.config.PodsPerCore); perCore > 0 {
		pods = min(pods, perCore*int64(k.cores))
	}
	disk := k.ephemeralBytes()
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(k.cores), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(memory/1024*1024, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(disk-disk*3/100, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(pods, resource.DecimalSI),
	}
}

// reservedMemory returns what firmware and kernel use of a VM's memory: 63, 81, 181 and
// 251 MiB of 1, 2, 4 and 8 GiB, as Debian 13 with OVMF on q35. A VM with 2.75 GiB or more
// has memory above 4 GiB, for which Linux reserves 64 MiB of bounce buffers.
func reservedMemory(memory int64) int64 {
	reserved := memory*17/1000 + 48*mebibyte
	if memory >= 2816*mebibyte {
		reserved += 64 * mebibyte
	}
	return reserved
}

// allocatable returns the capacity minus the kubelet's reservations and eviction
// thresholds.
func allocatable(capacity corev1.ResourceList, config kubeletconfig.KubeletConfiguration) corev1.ResourceList {
	out := capacity.DeepCopy()
	subtract := func(name corev1.ResourceName, amount resource.Quantity) {
		rest := out[name]
		rest.Sub(amount)
		if rest.Sign() < 0 {
			rest = resource.Quantity{Format: rest.Format}
		}
		out[name] = rest
	}
	for _, reserved := range []map[string]string{config.KubeReserved, config.SystemReserved} {
		for name, text := range reserved {
			amount, err := resource.ParseQuantity(text)
			if _, known := out[corev1.ResourceName(name)]; known && err == nil {
				subtract(corev1.ResourceName(name), amount)
			}
		}
	}
	for signal, name := range map[string]corev1.ResourceName{
		"memory.available": corev1.ResourceMemory,
		"nodefs.available": corev1.ResourceEphemeralStorage,
	} {
		subtract(name, threshold(config.EvictionHard[signal], capacity[name]))
	}
	return out
}

// threshold parses a quantity or a percentage of the capacity. A kubelet ignores 100 %.
func threshold(text string, capacity resource.Quantity) resource.Quantity {
	if percent, found := strings.CutSuffix(text, "%"); found {
		share, err := strconv.ParseFloat(percent, 64)
		if err != nil || share == 100 {
			return resource.Quantity{}
		}
		return *resource.NewQuantity(int64(float64(capacity.Value())*share/100), capacity.Format)
	}
	amount, err := resource.ParseQuantity(text)
	if err != nil {
		return resource.Quantity{}
	}
	return amount
}
