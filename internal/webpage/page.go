// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webpage serves a read-only page with the map of Hosts and VMs. Page renders it,
// and NewServer serves it with TLS to users whom Kubernetes authenticates and allows to get
// its Path.
package webpage

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

// Path is the path of the page, and the non-resource URL that a user must be allowed to get.
const Path = "/proxmox"

//go:embed page.html
var source string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bar":      bar,
	"storage":  storageBar,
	"gib":      func(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) },
	"price":    func(perHour float64) string { return fmt.Sprintf("%.3f", perHour) },
	"month":    func(perHour float64) string { return fmt.Sprintf("%.2f", perHour*fleet.HoursPerMonth) },
	"clock":    func(t time.Time) string { return t.UTC().Format(time.TimeOnly) },
	"seconds":  func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) },
	"timeline": timelineBar,
	"class":    phaseClass,
}).Parse(source))

// Page is the handler of the page.
type Page struct {
	// Read returns the current map.
	Read func(context.Context) (fleet.Map, error)
}

// content is what the template shows.
type content struct {
	fleet.Map
	Nonce         string
	NodePool      string
	Order         fleet.Order
	Orders        []fleet.Order
	Hosts         []host
	Placements    []placement
	TemplateHosts []string
	PodCount      int
	Launches      []fleet.VM
	UnplacedVMs   []fleet.VM
	// Used and Saved are the sums of all Hosts.
	Used, Saved declared.Energy
}

// host is a Host with its VMs.
type host struct {
	fleet.Host
	VMs []fleet.VM
}

// placement is a template with its VMID on each of the TemplateHosts; empty if it has none.
type placement struct {
	fleet.Template
	VMIDs []string
}

// ServeHTTP renders the page. The query parameters nodepool and sort select and order VMs.
func (p Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the page is read-only", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path != Path {
		http.NotFound(w, r)
		return
	}
	order := fleet.Order(r.URL.Query().Get("sort"))
	if !slices.Contains(fleet.Orders(), order) {
		order = fleet.ByName
	}
	m, err := p.Read(r.Context())
	if err != nil {
		log.FromContext(r.Context()).Error(err, "reading objects for the web page failed")
		http.Error(w, "reading objects failed: "+err.Error(), http.StatusInternalServerError)
		return
	}
	c := newContent(m, r.URL.Query().Get("nodepool"), order)
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, c); err != nil {
		log.FromContext(r.Context()).Error(err, "rendering the web page failed")
		http.Error(w, "rendering the page failed", http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+c.Nonce+"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	_, _ = w.Write(out.Bytes())
}

func newContent(m fleet.Map, nodePool string, order fleet.Order) content {
	m = m.OfNodePool(nodePool).Sorted(order)
	c := content{Map: m, Nonce: rand.Text(), NodePool: nodePool, Order: order, Orders: fleet.Orders()}
	c.Used, c.Saved = m.Energy()
	placed := map[string]bool{}
	for _, h := range m.Hosts {
		vms := m.VMsOn(h.Region, h.Name)
		for _, vm := range vms {
			placed[vm.Key()] = true
		}
		c.Hosts = append(c.Hosts, host{h, vms})
		c.TemplateHosts = append(c.TemplateHosts, h.Region+"/"+h.Name)
	}
	slices.Sort(c.TemplateHosts)
	for _, vm := range m.VMs {
		c.PodCount += len(vm.Pods)
		if !placed[vm.Key()] {
			c.UnplacedVMs = append(c.UnplacedVMs, vm)
		}
		if len(vm.Timeline) > 0 {
			c.Launches = append(c.Launches, vm)
		}
	}
	slices.SortStableFunc(c.Launches, func(a, b fleet.VM) int { return b.Created.Compare(a.Created) })
	c.Launches = c.Launches[:min(len(c.Launches), maxLaunches)]
	for _, t := range m.Templates {
		c.Placements = append(c.Placements, newPlacement(t, c.TemplateHosts))
	}
	return c
}

// maxLaunches limits the launches with a timeline.
const maxLaunches = 20

func newPlacement(t fleet.Template, hosts []string) placement {
	p := placement{Template: t}
	for _, name := range hosts {
		vmid := ""
		for _, zone := range t.Zones {
			if id, ok := strings.CutPrefix(zone, name+"/"); ok {
				vmid = id
			}
		}
		p.VMIDs = append(p.VMIDs, vmid)
	}
	return p
}

// phaseClass returns the CSS class of a phase.
func phaseClass(p fleet.Phase) string {
	switch p {
	case fleet.Ready:
		return "ok"
	case fleet.NotReady, fleet.Stopped, fleet.Orphaned:
		return "bad"
	case fleet.Deleting, fleet.Waiting, fleet.Planned, fleet.Cloning, fleet.Configured, fleet.Booting, fleet.Joined:
	}
	return "mid"
}
