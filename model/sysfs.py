#!/usr/bin/env python3
"""Writes the part of sysfs that libibverbs reads, for one mlx5 device whose port is NETDEV:  sysfs.py FOLDER NETDEV [IFINDEX MAC]

The model's preload library answers for the device node; SYSFS_PATH=FOLDER makes libibverbs read this tree."""
import pathlib
import sys

GUID = "506b:4b03:00a1:b200"


def interface_id(mac):
    """The link-local GID's lower half (RFC 4291 appendix A)."""
    b = [int(x, 16) for x in mac.split(":")]
    eui = [b[0] ^ 2, b[1], b[2], 0xFF, 0xFE, b[3], b[4], b[5]]
    return ":".join(f"{eui[i]:02x}{eui[i + 1]:02x}" for i in range(0, 8, 2))


def write(folder, netdev, ifindex, mac, part="1017"):
    """The tree below `folder`; values that a ConnectX-5 has, but for its part number."""
    folder = pathlib.Path(folder)
    pci = {
        "modalias": f"pci:v000015B3d0000{part}sv000015B3sd00000008bc02sc00i00",
        "vendor": "0x15b3",
        "device": f"0x{part}",
        "subsystem_vendor": "0x15b3",
        "subsystem_device": "0x0008",
        "numa_node": "-1",
        f"net/{netdev}/ifindex": ifindex,
        f"net/{netdev}/dev_port": 0,
        f"net/{netdev}/dev_id": "0x0",
        f"net/{netdev}/address": mac,
    }
    verbs = {"dev": "1:3", "ibdev": "mlx5_0", "abi_version": 1}
    ib = {
        "node_type": "1: CA",
        "node_guid": GUID,
        "sys_image_guid": GUID,
        "fw_ver": "16.35.2000",
        "hca_type": "MT4119",
        "board_id": "MODEL0000000",
        "hw_rev": 0,
        "node_desc": "model mlx5_0",
        "dev": "1:3",
        "uevent": "NAME=mlx5_0",
        "ports/1/state": "4: ACTIVE",
        "ports/1/phys_state": "5: LinkUp",
        "ports/1/rate": "100 Gb/sec (4X EDR)",
        "ports/1/link_layer": "Ethernet",
        "ports/1/lid": "0x0",
        "ports/1/sm_lid": "0x0",
        "ports/1/cap_mask": "0x04010000",
        "ports/1/pkeys/0": "0xffff",
    }
    for index, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
        ib[f"ports/1/gids/{index}"] = "fe80:0000:0000:0000:" + interface_id(mac)
        ib[f"ports/1/gid_attrs/types/{index}"] = kind
        ib[f"ports/1/gid_attrs/ndevs/{index}"] = netdev
    files = {"class/infiniband_verbs/abi_version": 6}
    files.update({f"class/infiniband_verbs/uverbs0/{k}": v for k, v in verbs.items()})
    files.update({f"class/infiniband/mlx5_0/{k}": v for k, v in ib.items()})
    for base in ("class/infiniband_verbs/uverbs0/device", "class/infiniband/mlx5_0/device", f"class/net/{netdev}/device"):
        files.update({f"{base}/{k}": v for k, v in pci.items()})
        files[f"{base}/infiniband/mlx5_0/node_guid"] = GUID
        files[f"{base}/infiniband_verbs/uverbs0/dev"] = "1:3"
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    module = folder / "module" / "mlx5_ib"
    module.mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], *(sys.argv[3:] or [1, "02:00:00:00:00:01"]))
