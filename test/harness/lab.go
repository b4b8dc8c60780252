// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// LabConfig describes a Proxmox cluster of somebody's own, for the end-to-end
// tests. docs/e2e.md tells it to its users.
type LabConfig struct {
	// CloudConfig is the path of a cloud config as the controller reads it; a
	// relative one counts from this file.
	CloudConfig string `json:"cloudConfig"`
	// Region is the entry of the cloud config to use; the only one when empty.
	Region string `json:"region,omitempty"`
	// Template that VMs are cloned from, by name, by tags, or by both.
	Template struct {
		Name string   `json:"name,omitempty"`
		Tags []string `json:"tags,omitempty"`
	} `json:"template"`
	// Storage of the VMs' disks; the template's own when empty.
	Storage string `json:"storage,omitempty"`
	// ISOStorage of boot drives; the first that takes them when empty.
	ISOStorage string `json:"isoStorage,omitempty"`
	// DiskSize of the VMs, at least the template's.
	DiskSize v1alpha1.DiskSize `json:"diskSize,omitempty"`
	// ResourcePool of Proxmox that VMs are put into.
	ResourcePool string `json:"resourcePool,omitempty"`
	// VMIDs that the tests may take.
	VMIDs struct {
		From int `json:"from"`
		To   int `json:"to"`
	} `json:"vmids"`
	// MaxVMs is how many VMs there is room for at once.
	MaxVMs int `json:"maxVMs,omitempty"`
	// NodeAddress is an IP address of this machine that VMs can reach. Without it
	// no VM becomes a Node.
	NodeAddress string `json:"nodeAddress,omitempty"`
	// Patience is how long anything may take, boots included.
	Patience metav1.Duration `json:"patience,omitzero"`
}

// Lab is a Proxmox cluster of somebody's own.
type Lab struct {
	LabConfig
	Cluster Cluster
	API     *API
	// Version of Proxmox VE.
	Version string
	// Hosts that are up and have the template.
	Hosts []string
}

// LoadLab reads the description. Its errors name file and field.
func LoadLab(path string) (*Lab, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the lab's description, %w", err)
	}
	lab := &Lab{}
	if err := yaml.UnmarshalStrict(content, &lab.LabConfig); err != nil {
		return nil, fmt.Errorf("reading the lab's description %s, %w", path, err)
	}
	lab.NodeAddress = cmp.Or(os.Getenv("E2E_NODE_ADDRESS"), lab.NodeAddress)
	if err := lab.complete(path); err != nil {
		return nil, fmt.Errorf("reading the lab's description %s, %w", path, err)
	}
	return lab, nil
}

func (l *Lab) complete(path string) error {
	l.DiskSize = cmp.Or(l.DiskSize, "30G")
	l.MaxVMs = cmp.Or(l.MaxVMs, 2)
	l.Patience.Duration = cmp.Or(l.Patience.Duration, 10*time.Minute)
	switch {
	case l.CloudConfig == "":
		return errors.New("cloudConfig: missing: want the path of a cloud config as the controller reads it")
	case l.Template.Name == "" && len(l.Template.Tags) == 0:
		return errors.New("template: missing: want the name or the tags of a Proxmox template")
	case l.VMIDs.From < 100 || l.VMIDs.To < l.VMIDs.From+99:
		return fmt.Errorf("vmids: found %d to %d, want at least a hundred VMIDs that nobody else uses, such as from: 20000, to: 20999", l.VMIDs.From, l.VMIDs.To)
	case l.NodeAddress != "" && net.ParseIP(l.NodeAddress) == nil:
		return fmt.Errorf("nodeAddress (E2E_NODE_ADDRESS): found %q, want an IP address of this machine that VMs can reach", l.NodeAddress)
	}
	if !filepath.IsAbs(l.CloudConfig) {
		l.CloudConfig = filepath.Join(filepath.Dir(path), l.CloudConfig)
	}
	return l.readCloudConfig()
}

func (l *Lab) readCloudConfig() error {
	cloud, err := proxmox.LoadConfig(l.CloudConfig)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(cloud.Clusters, func(c proxmox.ClusterConfig) bool { return l.Region == "" || c.Region == l.Region })
	switch {
	case i < 0:
		return fmt.Errorf("region: found %q, which %s does not have", l.Region, l.CloudConfig)
	case l.Region == "" && len(cloud.Clusters) > 1:
		return fmt.Errorf("region: missing: %s has %d clusters, name one of them", l.CloudConfig, len(cloud.Clusters))
	}
	if l.Cluster, err = clusterOf(cloud.Clusters[i]); err != nil {
		return err
	}
	l.Region = l.Cluster.Region
	if l.API, err = NewAPI(l.Cluster); err != nil {
		return err
	}
	l.API.vmids = func(vmid int) bool { return vmid >= l.VMIDs.From && vmid <= l.VMIDs.To }
	return nil
}

// clusterOf takes over an entry of the user's cloud config, files included.
func clusterOf(c proxmox.ClusterConfig) (Cluster, error) {
	out := Cluster{
		Region: c.Region, URLs: c.URLs, CA: c.CA, Insecure: c.Insecure, Fingerprint: strings.Join(c.Fingerprints, ";"),
		TokenID: c.TokenID, TokenSecret: string(c.TokenSecret),
	}
	for path, into := range map[string]*string{c.TokenIDFile: &out.TokenID, c.TokenSecretFile: &out.TokenSecret} {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return out, fmt.Errorf("reading the token of region %s, %w", c.Region, err)
		}
		*into = strings.TrimSpace(string(content))
	}
	if out.TokenID == "" {
		return out, fmt.Errorf("region %s of the cloud config has a login, want a token: docs/permissions.md tells which", c.Region)
	}
	return out, nil
}

// Open looks whether the cluster is there and as it was described.
func (l *Lab) Open(ctx context.Context) error {
	var version struct{ Version, Release string }
	if err := l.API.Call(ctx, http.MethodGet, "/version", nil, &version); err != nil {
		return fmt.Errorf("asking Proxmox for its version, %w", err)
	}
	l.Version = version.Version
	if major, _, _ := strings.Cut(l.Version, "."); major != "8" && major != "9" {
		return fmt.Errorf("the cluster at %s is of version %s, want Proxmox VE 8 or 9", l.Cluster.URLs[0], l.Version)
	}
	up, err := l.API.Hosts(ctx)
	if err != nil {
		return fmt.Errorf("listing the hosts, %w", err)
	}
	var guests []struct {
		Node, Name, Tags string
		Template         int
	}
	if err := l.API.Call(ctx, http.MethodGet, "/cluster/resources", map[string][]string{"type": {"vm"}}, &guests); err != nil {
		return fmt.Errorf("listing the guests, %w", err)
	}
	for _, guest := range guests {
		tags := strings.FieldsFunc(guest.Tags, func(r rune) bool { return strings.ContainsRune(";, ", r) })
		wanted := (l.Template.Name == "" || guest.Name == l.Template.Name) &&
			!slices.ContainsFunc(l.Template.Tags, func(tag string) bool { return !slices.Contains(tags, tag) })
		if guest.Template == 1 && up[guest.Node] && wanted && !slices.Contains(l.Hosts, guest.Node) {
			l.Hosts = append(l.Hosts, guest.Node)
		}
	}
	if len(l.Hosts) == 0 {
		return fmt.Errorf("template: no host of %s that is up has a template with name %q and tags %q that the token may see",
			l.Region, l.Template.Name, l.Template.Tags)
	}
	slices.Sort(l.Hosts)
	return nil
}

// network gives Nodes a pod network of their own: without any, a kubelet never
// says that it is ready. The plug-ins come with the kubelet's package.
const network = `write_files:
  - path: /etc/cni/net.d/10-e2e.conflist
    permissions: "0644"
    content: |
      {"cniVersion": "1.0.0", "name": "e2e", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.244.0.0/24"}}]}
`

// Adapt bends a kit so that it fits the lab.
func (l *Lab) Adapt(k *Kit) {
	k.Template.Spec = v1alpha1.ProxmoxUnmanagedTemplateSpec{Region: l.Region, TemplateName: l.Template.Name, Tags: l.Template.Tags}
	k.Class.Spec.Region = l.Region
	k.Class.Spec.BootDevice.Size, k.Class.Spec.BootDevice.Storage = l.DiskSize, l.Storage
	k.Class.Spec.MetadataOptions.Storage = l.ISOStorage
	k.Class.Spec.ResourcePool = l.ResourcePool
	k.Templates.StringData["user-data"] = strings.Replace(k.Templates.StringData["user-data"], "write_files:\n", network, 1)
}

// Args of the controller.
func (l *Lab) Args() []string {
	return []string{"--proxmox-vmid", fmt.Sprint(l.VMIDs.From), "--proxmox-vmid-max", fmt.Sprint(l.VMIDs.To)}
}
