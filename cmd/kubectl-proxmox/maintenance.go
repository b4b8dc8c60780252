// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// hostMaintenance is the ConfigMap of hosts in maintenance.
type hostMaintenance struct {
	cluster   *kubeCluster
	namespace string
	format    output
}

// maintainedHost is a host in the output of maintenance list.
type maintainedHost struct {
	Region    string `json:"region"`
	Host      string `json:"host"`
	NodesLeft int    `json:"nodesLeft"`
	Reason    string `json:"reason,omitempty"`
}

func newMaintenance(cluster *kubeCluster) *cobra.Command {
	m := &hostMaintenance{cluster: cluster}
	command := &cobra.Command{
		Use:   "maintenance",
		Short: "Drain hosts for maintenance, and return them to service",
		Long: `Put hosts into maintenance: no VM is launched there, and their Nodes are replaced on other hosts.

The hosts are listed in the ConfigMap ` + maintenance.ConfigMapName + `. Hosts in Proxmox's own HA maintenance are
drained in the same way, without this command.`,
	}
	command.PersistentFlags().StringVar(&m.namespace, "system-namespace", "", "namespace of the ConfigMap "+maintenance.ConfigMapName+systemNamespaceDefault)
	var reason string
	start := &cobra.Command{
		Use:   "start REGION/HOST",
		Short: "Put a host into maintenance",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := m.set(command, args[0], &reason, "requested maintenance of host %s\n"); err != nil {
				return err
			}
			return m.reportClaims(command, args[0])
		},
	}
	start.Flags().StringVar(&reason, "reason", "", "reason, which events on the Nodes contain")
	stop := &cobra.Command{
		Use:   "stop REGION/HOST",
		Short: "Return a host to service",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return m.set(command, args[0], nil, "host %s is in service\n")
		},
	}
	list := &cobra.Command{
		Use:   "list",
		Short: "Show the hosts in maintenance and how many Nodes are left there",
		Args:  cobra.NoArgs,
		RunE:  func(command *cobra.Command, _ []string) error { return m.list(command) },
	}
	m.format.flags(list)
	start.ValidArgsFunction, stop.ValidArgsFunction = completeFirst(cluster, classHosts), completeFirst(cluster, classHosts)
	command.AddCommand(start, stop, list)
	return command
}

// parseHost returns the host of an argument.
func parseHost(arg string) (observed.HostName, error) {
	region, host, _ := strings.Cut(arg, "/")
	name := observed.HostName{Region: region, Host: host}
	if region == "" || host == "" || strings.Contains(host, ".") || len(validation.IsConfigMapKey(name.Key())) > 0 {
		return name, fmt.Errorf("found host %q, want REGION/HOST, for example home/pve1", arg)
	}
	return name, nil
}

const systemNamespaceDefault = " (default that of the controller's settings, or kube-system)"

// systemNamespace returns the namespace of the controller's ConfigMaps if it is not set: that of
// its settings.
func systemNamespace(command *cobra.Command, kube client.Client, namespace string) string {
	if namespace != "" {
		return namespace
	}
	controller, err := findController(command.Context(), kube, "")
	if err == nil {
		namespace, err = controller.deployed(command.Context()).SystemNamespace()
	}
	if err != nil {
		namespace = metav1.NamespaceSystem
		_, _ = fmt.Fprintf(command.ErrOrStderr(), "warning: using namespace %s: %v; if the controller uses another one, set --system-namespace\n", namespace, err)
	}
	return namespace
}

// connect returns a client, and sets the namespace.
func (m *hostMaintenance) connect(command *cobra.Command) (client.Client, error) {
	kube, _, err := m.cluster.connect()
	if err == nil {
		m.namespace = systemNamespace(command, kube, m.namespace)
	}
	return kube, err
}

// set adds a host to the ConfigMap with a reason, or removes it if the reason is nil.
func (m *hostMaintenance) set(command *cobra.Command, arg string, reason *string, message string) error {
	name, err := parseHost(arg)
	if err != nil {
		return err
	}
	kube, err := m.connect(command)
	if err != nil {
		return err
	}
	if err := m.write(command.Context(), kube, name, reason); err != nil {
		return err
	}
	_, err = fmt.Fprintf(command.OutOrStdout(), message, name)
	return err
}

func (m *hostMaintenance) write(ctx context.Context, kube client.Client, name observed.HostName, reason *string) error {
	hosts, err := m.read(ctx, kube)
	if err != nil {
		return err
	}
	stored := hosts.DeepCopy()
	if reason == nil {
		if _, ok := hosts.Data[name.Key()]; !ok {
			return fmt.Errorf("host %[1]s is not in maintenance: ConfigMap %[2]s/%[3]s has no key %[4]s; if it is in HA maintenance, run on a host of its cluster: ha-manager crm-command node-maintenance disable %[5]s",
				name, hosts.Namespace, hosts.Name, name.Key(), name.Host)
		}
		delete(hosts.Data, name.Key())
	} else {
		hosts.Data[name.Key()] = *reason
	}
	if hosts.UID == "" {
		err = kube.Create(ctx, hosts)
	} else {
		err = kube.Patch(ctx, hosts, client.MergeFrom(stored))
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", hosts.Namespace, hosts.Name, err)
	}
	return nil
}

// read returns the ConfigMap; one without UID if it does not exist.
func (m *hostMaintenance) read(ctx context.Context, kube client.Client) (*corev1.ConfigMap, error) {
	hosts := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: maintenance.ConfigMapName}}
	if err := kube.Get(ctx, client.ObjectKeyFromObject(hosts), hosts); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", hosts.Namespace, hosts.Name, err)
	}
	if hosts.Data == nil {
		hosts.Data = map[string]string{}
	}
	return hosts, nil
}

// countClaims counts the NodeClaims of this provider on each host, and those that are drained because of its
// maintenance. VMs that Proxmox does not show count as on the host that they were launched on.
func (m *hostMaintenance) countClaims(command *cobra.Command, kube client.Client) (all, draining map[observed.HostName]int, err error) {
	ctx := command.Context()
	hostOf, err := (&clusters{cluster: m.cluster}).hostOfVMs(ctx)
	if err != nil {
		_, _ = fmt.Fprintf(command.ErrOrStderr(), "VMs that were migrated count as on the host that they were launched on, because Proxmox cannot be read: %v\n", err)
	}
	claims := &karpv1.NodeClaimList{}
	if err := kube.List(ctx, claims); err != nil {
		return nil, nil, fmt.Errorf("listing NodeClaims: %w", err)
	}
	all, draining = map[observed.HostName]int{}, map[observed.HostName]int{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		host := observed.HostName{Region: claim.Labels[corev1.LabelTopologyRegion], Host: claim.Labels[corev1.LabelTopologyZone]}
		if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil {
			host.Host = cmp.Or(hostOf(id), host.Host)
		}
		if ref := claim.Spec.NodeClassRef; ref == nil || ref.Group != v1alpha1.Group || host.Region == "" || host.Host == "" {
			continue // of another provider, or not launched yet
		}
		all[host]++
		if claim.Annotations[v1alpha1.AnnotationHostMaintenanceSince] != "" {
			draining[host]++
		}
	}
	return all, draining, nil
}

// reportClaims prints how many NodeClaims are on a host, and the hosts that exist or have
// some if it has none: its name may be wrong.
func (m *hostMaintenance) reportClaims(command *cobra.Command, arg string) error {
	name, err := parseHost(arg)
	if err != nil {
		return err
	}
	kube, _, err := m.cluster.connect()
	if err != nil {
		return err
	}
	nodes, _, err := m.countClaims(command, kube)
	if err != nil {
		return err
	}
	if nodes[name] > 0 {
		_, err = fmt.Fprintf(command.OutOrStdout(), "NodeClaims on it: %d; to see how many are left, run: kubectl proxmox maintenance list\n", nodes[name])
		return err
	}
	known := slices.Compact(slices.Sorted(slices.Values(classHosts(command.Context(), kube))))
	if len(known) > 0 && !slices.Contains(known, name.String()) {
		_, err = fmt.Fprintf(command.OutOrStdout(), "warning: no ProxmoxNodeClass lists host %s, so its name may be wrong; hosts: %s\n", name, strings.Join(known, ", "))
		return err
	}
	var others []string
	for host := range nodes {
		others = append(others, host.String())
	}
	slices.Sort(others)
	_, err = fmt.Fprintf(command.OutOrStdout(), "warning: no NodeClaim is on it; hosts with NodeClaims: %s\n", cmp.Or(strings.Join(others, ", "), "none"))
	return err
}

func (m *hostMaintenance) list(command *cobra.Command) error {
	kube, err := m.connect(command)
	if err != nil {
		return err
	}
	found, err := m.read(command.Context(), kube)
	if err != nil {
		return err
	}
	nodes, draining, err := m.countClaims(command, kube)
	if err != nil {
		return err
	}
	hosts, _ := declared.ParseMaintenance(found.Data) // the controller reports invalid entries
	for name := range draining {
		if _, ok := hosts[name]; !ok {
			hosts[name] = "HA maintenance"
		}
	}
	rows := []maintainedHost{}
	for _, name := range slices.SortedFunc(maps.Keys(hosts), func(a, b observed.HostName) int { return strings.Compare(a.String(), b.String()) }) {
		rows = append(rows, maintainedHost{name.Region, name.Host, nodes[name], hosts[name]})
	}
	return printRows(&m.format, command.OutOrStdout(), rows, "no host is in maintenance", "REGION\tHOST\tNODES LEFT\tREASON", func(r maintainedHost) string {
		return fmt.Sprintf("%s\t%s\t%d\t%s", r.Region, r.Host, r.NodesLeft, r.Reason)
	})
}
