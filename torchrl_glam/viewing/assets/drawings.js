"use strict";

// Playground-Text's things as SVG shapes of 48 by 48 units, agent and star around their middle. A shape is
// painted in viewer.css as its class says, else as the group that it is in (thing, agent, star).

const DRAWINGS = {
  "things": {
    "door": "<rect x=\"12\" y=\"3\" width=\"24\" height=\"42\" rx=\"1\"/><rect class=\"n\" x=\"17\" y=\"8\" width=\"14\" height=\"12\"/><circle class=\"k\" cx=\"32\" cy=\"26\" r=\"1.6\"/>",
    "chair": "<path d=\"M13 3h5v21h17v21h-4V30H18v15h-5z\"/>",
    "desk": "<rect x=\"3\" y=\"14\" width=\"42\" height=\"6\"/><path d=\"M6 20h4v24H6z\"/><rect x=\"27\" y=\"20\" width=\"15\" height=\"24\"/><path class=\"n\" d=\"M27 28h15M27 36h15\"/>",
    "lamp": "<path class=\"n\" d=\"M24 22v19\"/><path d=\"M16 4h16l7 18H9z\"/><rect x=\"14\" y=\"40\" width=\"20\" height=\"5\" rx=\"2\"/>",
    "table": "<path d=\"M9 20 6 45h4l4-24zM39 20l3 25h-4l-4-24z\"/><ellipse cx=\"24\" cy=\"16\" rx=\"21\" ry=\"7\"/>",
    "cupboard": "<rect x=\"8\" y=\"3\" width=\"32\" height=\"39\" rx=\"1\"/><path class=\"n\" d=\"M24 15v27M8 15h32M12 42v4M36 42v4\"/><circle class=\"k\" cx=\"21\" cy=\"28\" r=\"1.5\"/><circle class=\"k\" cx=\"27\" cy=\"28\" r=\"1.5\"/>",
    "sink": "<path class=\"n\" d=\"M22 22V11q0-6 6-6t6 6v2\"/><path d=\"M4 22h40c0 11-8 15-20 15S4 33 4 22z\"/><rect x=\"20\" y=\"37\" width=\"8\" height=\"8\"/>",
    "window": "<rect x=\"8\" y=\"3\" width=\"32\" height=\"38\"/><rect class=\"w\" x=\"12\" y=\"7\" width=\"11\" height=\"14\"/><rect class=\"w\" x=\"25\" y=\"7\" width=\"11\" height=\"14\"/><rect class=\"w\" x=\"12\" y=\"23\" width=\"11\" height=\"14\"/><rect class=\"w\" x=\"25\" y=\"23\" width=\"11\" height=\"14\"/><rect x=\"4\" y=\"41\" width=\"40\" height=\"4\"/>",
    "sofa": "<path d=\"M9 26V12q0-4 4-4h22q4 0 4 4v14z\"/><path d=\"M3 22q0-4 4-4t4 4v7h26v-7q0-4 4-4t4 4v18H3z\"/><path class=\"n\" d=\"M24 29v-6M11 29h26M7 40v4M41 40v4\"/>",
    "carpet": "<path d=\"M12 12h33l-9 25H3z\"/><path class=\"n\" d=\"M16 17h22l-6 15H10zM3 37l-1 3M36 37l-1 3M20 37l-1 3\"/>",
    "cactus": "<path d=\"M19 45V11q0-6 5-6t5 6v14h4v-7q0-3 3-3t3 3v8q0 5-5 5h-5v14zM19 35h-5q-5 0-5-5v-7q0-3 3-3t3 3v6h4z\"/>",
    "carnivorous": "<path class=\"s\" d=\"M24 46V28\"/><path d=\"M24 29C5 29 4 12 11 5q7 10 13 15 6-5 13-15c7 7 6 24-13 24z\"/><path class=\"w\" d=\"m14 11 2 6 3-2M34 11l-2 6-3-2M20 22l4-3 4 3-4 4z\"/>",
    "flower": "<path class=\"s\" d=\"M24 46V22\"/><circle cx=\"24\" cy=\"8\" r=\"6\"/><circle cx=\"33\" cy=\"14\" r=\"6\"/><circle cx=\"30\" cy=\"24\" r=\"6\"/><circle cx=\"18\" cy=\"24\" r=\"6\"/><circle cx=\"15\" cy=\"14\" r=\"6\"/><circle class=\"y\" cx=\"24\" cy=\"17\" r=\"5\"/>",
    "tree": "<rect class=\"b\" x=\"20\" y=\"28\" width=\"8\" height=\"18\"/><path d=\"M24 2q9 0 11 8 8 2 7 11-1 10-11 9-7 5-14 0-10 1-11-9-1-9 7-11 2-8 11-8z\"/>",
    "bush": "<path d=\"M7 43q-6-11 4-15-1-11 9-10 5-8 12-1 10-1 9 9 8 6 2 17z\"/><circle class=\"k\" cx=\"18\" cy=\"32\" r=\"1.3\"/><circle class=\"k\" cx=\"29\" cy=\"28\" r=\"1.3\"/><circle class=\"k\" cx=\"34\" cy=\"36\" r=\"1.3\"/>",
    "grass": "<path d=\"M6 45Q6 30 2 22q9 5 10 16 0-20 6-31 3 15 2 25Q24 13 33 5q-5 16-4 29 5-12 15-17-8 13-6 28z\"/>",
    "algae": "<path d=\"M11 46q-9-8 0-17T11 3q14 10 8 21t-1 22zM30 46q-8-7 1-16T29 6q14 9 9 20t-1 20z\"/>",
    "tea": "<path class=\"s\" d=\"M24 46V16\"/><path d=\"M24 20C13 19 13 8 24 2c11 6 11 17 0 18z\"/><path d=\"M23 34C11 36 5 29 4 20c11-1 18 4 19 14zM25 34c12 2 18-5 19-14-11-1-18 4-19 14z\"/>",
    "rose": "<path class=\"s\" d=\"M24 46V24M24 39q8-1 10-8\"/><circle cx=\"24\" cy=\"14\" r=\"12\"/><path class=\"n\" d=\"M24 15q0-4 4-3t2 6-8 3-6-7 6-8 10 3\"/>",
    "bonsai": "<path class=\"b\" d=\"M24 39q-9-7 0-14l3 2q-5 6 2 12z\"/><ellipse cx=\"15\" cy=\"22\" rx=\"11\" ry=\"6\"/><ellipse cx=\"31\" cy=\"15\" rx=\"13\" ry=\"8\"/><path class=\"b\" d=\"M11 38h26l-4 8H15z\"/>",
    "dog": "<circle cx=\"24\" cy=\"25\" r=\"16\"/><path d=\"M12 11Q2 10 4 26q3 5 8-2zM36 11q10-1 8 15-3 5-8-2z\"/><circle class=\"k\" cx=\"18\" cy=\"21\" r=\"2\"/><circle class=\"k\" cx=\"30\" cy=\"21\" r=\"2\"/><ellipse class=\"w\" cx=\"24\" cy=\"32\" rx=\"8\" ry=\"6\"/><ellipse class=\"k\" cx=\"24\" cy=\"29\" rx=\"3\" ry=\"2\"/><path class=\"n\" d=\"M24 31v4\"/>",
    "cat": "<path d=\"M9 22 8 4l11 8h10l11-8-1 18q2 20-15 20T9 22z\"/><circle class=\"k\" cx=\"18\" cy=\"23\" r=\"2\"/><circle class=\"k\" cx=\"30\" cy=\"23\" r=\"2\"/><path class=\"k\" d=\"m22 29h4l-2 3z\"/><path class=\"n\" d=\"M2 27l10 3M2 35l10-2M46 27l-10 3M46 35l-10-2M24 32v3\"/>",
    "chameleon": "<path class=\"n\" d=\"M9 32q-7 4-5 9t7 2 0-5\"/><path d=\"M8 32q0-16 17-16 3-8 12-7 9 2 8 10-1 7-9 7-3 9-14 10-14 1-14-4z\"/><path class=\"n\" d=\"M16 36v7M28 35v8\"/><circle class=\"w\" cx=\"36\" cy=\"16\" r=\"4\"/><circle class=\"k\" cx=\"37\" cy=\"16\" r=\"1.6\"/>",
    "human": "<path d=\"M9 46q0-22 15-22t15 22z\"/><circle cx=\"24\" cy=\"12\" r=\"10\"/><circle class=\"k\" cx=\"20\" cy=\"11\" r=\"1.5\"/><circle class=\"k\" cx=\"28\" cy=\"11\" r=\"1.5\"/><path class=\"n\" d=\"M20 16q4 3 8 0\"/>",
    "fly": "<ellipse class=\"w\" cx=\"12\" cy=\"22\" rx=\"11\" ry=\"6\" transform=\"matrix(.9063 -.4226 .4226 .9063 -8.173 7.133)\"/><ellipse class=\"w\" cx=\"36\" cy=\"22\" rx=\"11\" ry=\"6\" transform=\"matrix(.9063 .4226 -.4226 .9063 12.671 -13.153)\"/><ellipse cx=\"24\" cy=\"29\" rx=\"7\" ry=\"14\"/><circle cx=\"24\" cy=\"12\" r=\"7\"/><circle class=\"k\" cx=\"20\" cy=\"10\" r=\"2.4\"/><circle class=\"k\" cx=\"28\" cy=\"10\" r=\"2.4\"/><path class=\"n\" d=\"M18 30h12M18 36h12\"/>",
    "parrot": "<path d=\"M12 46q-3-26 8-36 10-8 17 2 4 16-11 27-6 3-14 7z\"/><path class=\"y\" d=\"M36 10q9 1 8 10-5-3-9-3z\"/><circle class=\"w\" cx=\"29\" cy=\"13\" r=\"3.4\"/><circle class=\"k\" cx=\"30\" cy=\"13\" r=\"1.6\"/><path class=\"n\" d=\"M18 22q9 4 6 16\"/>",
    "mouse": "<circle cx=\"11\" cy=\"13\" r=\"9\"/><circle cx=\"37\" cy=\"13\" r=\"9\"/><circle class=\"w\" cx=\"11\" cy=\"13\" r=\"4\"/><circle class=\"w\" cx=\"37\" cy=\"13\" r=\"4\"/><path d=\"M24 44q-14-8-14-18t14-10 14 10-14 18z\"/><circle class=\"k\" cx=\"18\" cy=\"26\" r=\"2\"/><circle class=\"k\" cx=\"30\" cy=\"26\" r=\"2\"/><circle class=\"k\" cx=\"24\" cy=\"40\" r=\"3\"/>",
    "lion": "<path d=\"m24 2 5 5 7-2 2 7 7 3-2 7 3 6-6 4v7l-7 1-4 6-5-4-5 4-4-6-7-1v-7l-6-4 3-6-2-7 7-3 2-7 7 2z\"/><circle class=\"w\" cx=\"24\" cy=\"25\" r=\"12\"/><circle class=\"k\" cx=\"19\" cy=\"22\" r=\"2\"/><circle class=\"k\" cx=\"29\" cy=\"22\" r=\"2\"/><path class=\"k\" d=\"M21 27h6l-3 3z\"/><path class=\"n\" d=\"M24 30v2q-3 3-5 1M24 32q3 3 5 1\"/>",
    "pig": "<path d=\"M9 14 7 4l10 5zM39 14l2-10-10 5z\"/><circle cx=\"24\" cy=\"26\" r=\"18\"/><circle class=\"k\" cx=\"17\" cy=\"21\" r=\"2\"/><circle class=\"k\" cx=\"31\" cy=\"21\" r=\"2\"/><ellipse class=\"w\" cx=\"24\" cy=\"31\" rx=\"8\" ry=\"6\"/><circle class=\"k\" cx=\"21\" cy=\"31\" r=\"1.6\"/><circle class=\"k\" cx=\"27\" cy=\"31\" r=\"1.6\"/>",
    "cow": "<path class=\"w\" d=\"M12 12Q4 10 6 2q2 6 9 6zM36 12q8-2 6-10-2 6-9 6z\"/><path d=\"M11 17Q2 14 1 22q6 4 11 1zM37 17q9-3 10 5-6 4-11 1z\"/><path d=\"M11 14q13-10 26 0l-3 22H14z\"/><ellipse class=\"w\" cx=\"24\" cy=\"37\" rx=\"12\" ry=\"8\"/><circle class=\"k\" cx=\"18\" cy=\"21\" r=\"2\"/><circle class=\"k\" cx=\"30\" cy=\"21\" r=\"2\"/><circle class=\"k\" cx=\"20\" cy=\"36\" r=\"1.6\"/><circle class=\"k\" cx=\"28\" cy=\"36\" r=\"1.6\"/>",
    "food": "<path class=\"s\" d=\"M24 15q0-8 6-12\"/><path d=\"M24 14C18 7 5 11 6 26c1 12 10 21 18 18 8 3 17-6 18-18 1-15-12-19-18-12z\"/><path class=\"w\" d=\"M12 24q0-7 6-8-3 3-3 9z\"/>",
    "water": "<path d=\"M24 2c7 12 15 18 15 28a15 15 0 0 1-30 0C9 20 17 14 24 2z\"/><path class=\"w\" d=\"M15 29q0 9 8 11-4-4-4-11z\"/>"
  },
  "agent": "<path d=\"M-9 20q0-20 9-20t9 20z\"/><circle cx=\"0\" cy=\"-6\" r=\"8\"/><circle class=\"w\" cx=\"-3\" cy=\"-7\" r=\"2.2\"/><circle class=\"w\" cx=\"3\" cy=\"-7\" r=\"2.2\"/>",
  "star": "<path d=\"m0-8 2.2 5.4 5.8.4-4.5 3.7 1.5 5.7L0 4.2l-5 3 1.5-5.7-4.5-3.7 5.8-.4z\"/>"
};
